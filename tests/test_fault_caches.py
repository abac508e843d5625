"""A damaged cache is refused by the name of its file before any of it is loaded; nothing calls it warm."""

import io
import tarfile

import pytest

import stub
import stub_child
from complab import evidence
from complab.errors import EXIT_UNVERIFIED
from stub import COLD, RUN, WARM

FXGRAPH, AOT, WRAPPER, SOURCE, KERNEL = stub_child.CACHE

DAMAGE = {
    "truncated": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "deleted": lambda content: None,
    "a bit flipped": lambda content: bytes([content[0] ^ 1]) + content[1:],
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A stub project with a cold cell, its sealed cache and sealed headers."""
    project = stub.make(tmp_path_factory.mktemp("caches"), {"default": ["cold", "warm"]})
    status, _, complaints = project.script(
        "--policy", "default", "--cache", "cold", "--out", project.folder(COLD)
    )
    assert status == 0, complaints
    assert evidence.verify(project.folder(COLD), RUN, COLD).verdict == "cold-proven"
    return project


def warm(project: stub.Stub, *words: object) -> tuple[int, str, str]:
    """Measure the warm cell of the cold one."""
    cold = ("--cold", project.folder(COLD), "--out", project.folder(WARM))
    return project.script("--policy", "default", "--cache", "warm", *cold, *words)


@pytest.fixture
def sealed(measured):
    """The sealed cache, put back after the test."""
    path = measured.folder(COLD) / evidence.SEALED_CACHE
    kept = path.read_bytes()
    yield path
    path.write_bytes(kept)


def damage(tar, victim: str, how: str) -> None:
    """Change one member of a tar, and write all else as it was."""
    with tarfile.open(tar) as archive:
        members = {member.name: archive.extractfile(member).read() for member in archive}
    with tarfile.open(tar, "w") as archive:
        for name, content in members.items():
            changed = DAMAGE[how](content) if name == victim else content
            if changed is not None:
                info = tarfile.TarInfo(name)
                info.size = len(changed)
                archive.addfile(info, io.BytesIO(changed))


@pytest.mark.fault(
    "T5", "cache entries, generated code, a kernel: truncated, emptied, deleted, a bit flipped"
)
@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("victim", [FXGRAPH, AOT, WRAPPER, KERNEL], ids=["fxgraph", "aot", "py", "so"])
def test_a_damaged_cache_starts_no_warm_cell_and_its_file_is_named(measured, sealed, victim, how):
    damage(sealed, victim, how)
    status, said, complaints = warm(measured)
    assert status == EXIT_UNVERIFIED
    assert f"in the sealed cache {victim} " in complaints
    assert "stub of" not in said
    assert not measured.folder(WARM).exists()


@pytest.mark.fault("T5", "a damaged cache that the rules meet: recorded as failed, with a status of its own")
def test_a_damaged_cache_is_recorded_as_unverified_and_not_as_a_failure_of_torch(measured, sealed, tmp_path):
    damage(sealed, KERNEL, "truncated")
    words = ("--policy", "default", "--cache", "warm", "--cold", measured.folder(COLD), "--record-failure")
    status, _, _ = measured.script(*words, "--out", tmp_path / "warm")
    assert status == 0
    record = evidence.verify(tmp_path / "warm", RUN, WARM)
    assert record.failed
    assert record.provenance["exit_status"] == EXIT_UNVERIFIED
    assert f"in the sealed cache {KERNEL} has " in record.provenance["failure"]["message"]


@pytest.mark.fault("T5", "a sealed precompiled header: truncated, emptied, deleted, a bit flipped")
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_precompiled_header_starts_no_cell_and_is_named(measured, how):
    header = next((measured.project / "results/headers").glob(f"*/{stub_child.HEADER}"))
    kept = header.read_bytes()
    changed = DAMAGE[how](kept)
    header.unlink()
    if changed is not None:
        header.write_bytes(changed)
    try:
        status, said, complaints = warm(measured)
    finally:
        header.unlink(missing_ok=True)
        header.write_bytes(kept)
    assert status == EXIT_UNVERIFIED
    assert f"of the sealed precompiled headers {stub_child.HEADER} " in complaints
    assert "remove the folder to build them again" in complaints
    assert "stub of" not in said


@pytest.mark.fault("T5", "the undamaged cache beside them")
def test_the_whole_cache_is_warm(measured, tmp_path):
    words = ("--policy", "default", "--cache", "warm", "--cold", measured.folder(COLD))
    status, _, complaints = measured.script(*words, "--out", tmp_path / "warm")
    assert status == 0, complaints
    assert evidence.verify(tmp_path / "warm", RUN, WARM).verdict == "warm-proven"
