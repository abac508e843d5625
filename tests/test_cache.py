"""A cell is called cold or warm only if counters, manifests and compiler processes agree that it was."""

import io
import os
import random
import tarfile
from dataclasses import replace

import pytest

from complab.errors import EXIT_UNVERIFIED, Unverified, counted
from complab.measure import cache
from complab.measure.cache import COLD, INDETERMINATE, NOT_APPLICABLE, WARM, Observed, judge

# What Inductor leaves for one graph on a CPU: a cache entry, a wrapper, a kernel and what it was built from.
FILES = {
    "fxgraph/5w/f5wp4s6p/bfwnsn3o": b"entry",
    "aotautograd/a52omrwr/3742jac3": b"entry",
    "bv/cbvemf3m.py": b"wrapper",
    "2i/c2id3iuk.main.cpp": b"kernel",
    "2i/c2id3iuk.main.so": b"\x7fELF kernel",
    "24/c244b2rg.cpp": b"probe",
    "24/c244b2rg.so": b"\x7fELF probe",
}
LOCKS = {"locks/fxgraph.lock": b"", "locks/deep/er": b"", "2i/c2id3iuk.lock": b""}


def fill(folder, files: dict[str, bytes]):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path):
    """A cache folder as a cold process leaves it."""
    return fill(tmp_path / "cache", {**FILES, **LOCKS})


@pytest.fixture
def sealed(tmp_path, folder):
    """The tar of that folder and its manifest."""
    tar = tmp_path / "cache.tar"
    return tar, cache.seal(folder, tar)


def refusal(tar, manifest, target) -> str:
    """The one line with which a sealed cache is refused, after checking that nothing was unpacked."""
    target.mkdir(exist_ok=True)
    with pytest.raises(Unverified) as caught:
        cache.unpack(tar, manifest, target)
    assert list(target.rglob("*")) == []
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{tar}: ")
    assert str(caught.value).endswith("measure the cold cell again")
    assert caught.value.code == EXIT_UNVERIFIED
    return str(caught.value)


# Manifests.


def test_a_manifest_names_each_file_with_size_and_digest_but_no_lock(folder):
    found = cache.manifest(folder)
    assert set(found) == set(FILES)
    assert found["bv/cbvemf3m.py"]["bytes"] == len(b"wrapper")


def test_locks_that_come_and_go_do_not_change_a_manifest(folder):
    before = cache.root_hash(cache.manifest(folder))
    fill(folder, {"locks/another.lock": b"1", "fxgraph/5w/x.lock": b"2"})
    (folder / "locks/fxgraph.lock").unlink()
    assert cache.root_hash(cache.manifest(folder)) == before


def test_a_file_that_only_sounds_like_a_lock_counts(folder):
    fill(folder, {"bv/locksmith.py": b"", "locks.py": b"", "bv/locks": b""})
    assert {"bv/locksmith.py", "locks.py", "bv/locks"} <= set(cache.manifest(folder))


def test_the_root_hash_depends_on_names_and_content_only(folder):
    found = cache.manifest(folder)
    backwards = dict(reversed(found.items()))
    assert cache.root_hash(backwards) == cache.root_hash(found)
    renamed = {name.replace("bv/", "bw/"): entry for name, entry in found.items()}
    assert cache.root_hash(renamed) != cache.root_hash(found)


def test_a_summary_counts_files_and_bytes(folder):
    told = cache.summary(cache.manifest(folder))
    assert (told["files"], told["bytes"]) == (len(FILES), sum(map(len, FILES.values())))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, ""),
        ({"a": None}, "a is missing"),
        ({"c": ("3", 3)}, "c is new"),
        ({"b": ("2", 9)}, "b has 9 bytes, not 2"),
        ({"b": ("x", 2)}, "b was altered"),
        ({"a": None, "b": ("x", 2)}, "a is missing"),
    ],
)
def test_the_first_difference_is_named(change, told):
    expected = {"a": {"sha256": "1", "bytes": 1}, "b": {"sha256": "2", "bytes": 2}}
    found = dict(expected)
    for name, entry in change.items():
        if entry is None:
            del found[name]
        else:
            found[name] = {"sha256": entry[0], "bytes": entry[1]}
    assert cache.first_difference(expected, found) == told


# The sealed cache.


def test_a_sealed_cache_comes_back_file_by_file(sealed, tmp_path):
    tar, manifest = sealed
    cache.unpack(tar, manifest, tmp_path / "warm")
    assert cache.manifest(tmp_path / "warm") == manifest
    assert {name: (tmp_path / "warm" / name).read_bytes() for name in FILES} == FILES


def test_the_same_files_are_sealed_to_the_same_bytes(sealed, tmp_path):
    tar, _ = sealed
    other = fill(tmp_path / "elsewhere", dict(reversed({**FILES, "locks/z.lock": b""}.items())))
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
    cache.seal(other, tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == tar.read_bytes()


def test_empty_files_long_names_and_hard_links_survive_sealing(tmp_path):
    long_name = "/".join(["d" * 60] * 3) + "/" + "f" * 120 + ".py"
    folder = fill(tmp_path / "cache", {"empty.py": b"", long_name: b"x", "a.so": b"same"})
    os.link(folder / "a.so", folder / "b.so")
    manifest = cache.seal(folder, tmp_path / "cache.tar")
    cache.unpack(tmp_path / "cache.tar", manifest, tmp_path / "warm")
    assert cache.manifest(tmp_path / "warm") == manifest
    assert set(manifest) == {"empty.py", long_name, "a.so", "b.so"}


def retar(tar, edit) -> None:
    """Rewrite a tar with members and contents changed by ``edit(name, content)``, which may drop one."""
    with tarfile.open(tar) as archive:
        members = [(member, archive.extractfile(member).read()) for member in archive]
    with tarfile.open(tar, "w") as archive:
        for member, content in members:
            changed = edit(member.name, content)
            if changed is not None:
                member.size = len(changed)
                archive.addfile(member, io.BytesIO(changed))


@pytest.mark.fault("T5", "a member of the sealed cache deleted")
def test_a_deleted_member_is_named(sealed, tmp_path):
    tar, manifest = sealed
    retar(tar, lambda name, content: None if name.endswith(".main.so") else content)
    assert "in the sealed cache 2i/c2id3iuk.main.so is missing" in refusal(tar, manifest, tmp_path / "warm")


def test_an_added_member_is_named(sealed, tmp_path):
    tar, manifest = sealed
    del manifest["bv/cbvemf3m.py"]
    assert "in the sealed cache bv/cbvemf3m.py is new" in refusal(tar, manifest, tmp_path / "warm")


@pytest.mark.fault("T5", "a member of the sealed cache truncated")
def test_a_truncated_member_is_named(sealed, tmp_path):
    tar, manifest = sealed
    retar(tar, lambda name, content: content[:-1] if name.endswith(".main.so") else content)
    assert "2i/c2id3iuk.main.so has 10 bytes, not 11" in refusal(tar, manifest, tmp_path / "warm")


@pytest.mark.fault("T5", "a flipped bit in the sealed cache")
def test_a_flipped_bit_in_a_member_is_named(sealed, tmp_path):
    tar, manifest = sealed
    content = tar.read_bytes()
    place = content.index(b"\x7fELF kernel")
    tar.write_bytes(content[:place] + b"\x7eELF kernel" + content[place + 11 :])
    assert "2i/c2id3iuk.main.so was altered" in refusal(tar, manifest, tmp_path / "warm")


@pytest.mark.fault("T5", "any flipped bit of the sealed cache")
def test_whatever_bit_of_the_first_members_flips_nothing_altered_is_unpacked(sealed, tmp_path):
    tar, manifest = sealed
    content, draw = tar.read_bytes(), random.Random(5)
    for number in range(60):
        place, bit = draw.randrange(2048), 1 << draw.randrange(8)
        tar.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        target = tmp_path / str(number)
        target.mkdir()
        try:
            cache.unpack(tar, manifest, target)
        except Unverified:
            assert list(target.rglob("*")) == []
        else:
            assert cache.manifest(target) == manifest


@pytest.mark.fault("T5", "the sealed cache cut off anywhere")
@pytest.mark.parametrize("kept", [0, 100, 512, 600, 1024, 2000, 4000])
def test_a_cut_tar_is_refused(sealed, tmp_path, kept):
    tar, manifest = sealed
    tar.write_bytes(tar.read_bytes()[:kept])
    refusal(tar, manifest, tmp_path / "warm")


def test_what_is_no_tar_is_refused(sealed, tmp_path):
    tar, manifest = sealed
    tar.write_bytes(b"no tar at all" * 1000)
    assert "the sealed cache is damaged" in refusal(tar, manifest, tmp_path / "warm")


def test_a_missing_tar_is_named(sealed, tmp_path):
    tar, manifest = sealed
    tar.unlink()
    assert "the sealed cache is missing" in refusal(tar, manifest, tmp_path / "warm")


def add_member(
    tar, name: str, content: bytes = b"evil", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> dict:
    """Add a member to a tar; returns the manifest entry a liar would add for it."""
    with tarfile.open(tar, "a") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        info.size = len(content) if kind == tarfile.REGTYPE else 0
        archive.addfile(info, io.BytesIO(content))
    found = cache.manifest(fill(tar.parent / "liar", {"x": content}))["x"]
    return {name: found}


@pytest.mark.parametrize("liar", [False, True], ids=["manifest does not know it", "manifest lists it"])
@pytest.mark.parametrize("name", ["../outside.so", "bv/../../outside.so", "ABSOLUTE/outside.so", ".."])
def test_a_member_outside_the_folder_is_refused_by_name_and_never_written(sealed, tmp_path, name, liar):
    tar, manifest = sealed
    name = name.replace("ABSOLUTE", str(tmp_path))
    told = add_member(tar, name)
    message = refusal(tar, {**manifest, **told} if liar else manifest, tmp_path / "warm")
    assert name in message
    assert not (tmp_path / "outside.so").exists()


@pytest.mark.parametrize("liar", [False, True], ids=["manifest does not know it", "manifest lists it"])
@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc/hostname"),
        (tarfile.SYMTYPE, "bv/cbvemf3m.py"),
        (tarfile.LNKTYPE, "bv/cbvemf3m.py"),
        (tarfile.FIFOTYPE, ""),
        (tarfile.CHRTYPE, ""),
    ],
)
def test_a_member_that_is_no_plain_file_is_refused_by_name(sealed, tmp_path, kind, link, liar):
    tar, manifest = sealed
    told = add_member(tar, "bv/link.so", kind=kind, link=link)
    message = refusal(tar, {**manifest, **told} if liar else manifest, tmp_path / "warm")
    assert "member 'bv/link.so' is not a plain file" in message


def test_a_member_that_comes_twice_is_refused_by_name(sealed, tmp_path):
    tar, manifest = sealed
    add_member(tar, "bv/cbvemf3m.py", FILES["bv/cbvemf3m.py"])
    assert "bv/cbvemf3m.py" in refusal(tar, manifest, tmp_path / "warm")


# What the witnesses say of one process.

PLACE = "/tmp/complab-x1/cache"
ON_213 = {"fx_graph_cache": True, "aot_autograd_cache": True, "precompiled_headers": True}
ON_26 = {"fx_graph_cache": True, "aot_autograd_cache": False, "precompiled_headers": False}
ASKED = [
    ["g++", "--version"],
    ["/usr/bin/g++", "-E", "-P", "/tmp/h.h", "-o", "/tmp/h.i"],
    ["openssl", "sha512"],
]


def entries(*names: str) -> dict[str, dict]:
    return {name: {"sha256": name.ljust(64, "0")[:64], "bytes": len(name)} for name in names}


def cpu_files(graphs: int, aot: bool) -> dict[str, dict]:
    """What a cold process leaves for its graphs on a CPU, the probe for vector instructions included."""
    names = ["24/probe.cpp", "24/probe.so"]
    for number in range(graphs):
        names += [
            f"fxgraph/5w/f{number}/entry",
            f"bv/c{number}.py",
            f"2i/c{number}.main.cpp",
            f"2i/c{number}.main.so",
        ]
        names += [f"aotautograd/a{number}/entry"] if aot else []
    return entries(*names)


def built(*names: str) -> list[list[str]]:
    """Compiler processes that write these files into the cache."""
    return [
        ["/usr/bin/g++", f"{PLACE}/{name[:-3]}.cpp", "-O3", "-shared", "-fPIC", "-o", f"{PLACE}/{name}"]
        for name in names
    ]


def hits(graphs: int, aot: bool = True, misses: int = 0) -> dict:
    """Counters of a process in which ``misses`` lookups found nothing and the rest did."""
    found = {"fxgraph_cache_hit": graphs - misses, "fxgraph_cache_miss": misses}
    told = {
        "autograd_cache_hit": graphs - misses,
        "autograd_cache_miss": misses,
        "autograd_cache_saved": misses,
    }
    counters = {
        "stats": {"unique_graphs": graphs},
        "inductor": {key: value for key, value in found.items() if value},
    }
    if aot:
        counters["aot_autograd"] = {
            "total": graphs,
            "ok": graphs,
            **{key: value for key, value in told.items() if value},
        }
    return counters


def cold(graphs: int = 3, aot: bool = True, **changes) -> Observed:
    """A cold process on a CPU in which all witnesses agree."""
    after = cpu_files(graphs, aot)
    seen = Observed(
        before={},
        after=after,
        headers_changed="",
        counters=hits(graphs, aot, misses=graphs),
        graphs=graphs,
        spawned=ASKED + built(*(name for name in after if name.endswith(".so"))),
        capabilities=ON_213 if aot else ON_26,
        cache_folder=PLACE,
    )
    return replace(seen, **changes)


def warm(graphs: int = 3, aot: bool = True, **changes) -> Observed:
    """A warm process on the files of `cold` in which all witnesses agree."""
    files = cpu_files(graphs, aot)
    seen = cold(graphs, aot, before=files, after=files, counters=hits(graphs, aot), spawned=ASKED)
    return replace(seen, **changes)


SEALED = cpu_files(3, aot=True)


def with_counter(seen: Observed, category: str, **values: int) -> Observed:
    counters = {**seen.counters, category: {**seen.counters.get(category, {}), **values}}
    return replace(seen, counters=counters)


def without_counter(seen: Observed, category: str, key: str) -> Observed:
    kept = {name: value for name, value in seen.counters[category].items() if name != key}
    return replace(seen, counters={**seen.counters, category: kept})


# Agreement.


@pytest.mark.parametrize("aot", [True, False], ids=["2.13", "2.6"])
@pytest.mark.parametrize("graphs", [1, 3, 8])
def test_cold_is_proven_where_all_witnesses_agree(graphs, aot):
    verdict, reasons = judge("cold", cold(graphs, aot))
    assert verdict == COLD
    assert reasons == [
        f"cold: {counted(graphs, 'graph')}, FX cache 0 hits {counted(graphs, 'miss')}, 0 files before, "
        f"{len(cpu_files(graphs, aot))} after, {graphs + 1} binaries built"
    ]


@pytest.mark.parametrize("aot", [True, False], ids=["2.13", "2.6"])
@pytest.mark.parametrize("graphs", [1, 3, 8])
def test_warm_is_proven_where_all_witnesses_agree(graphs, aot):
    verdict, reasons = judge("warm", warm(graphs, aot), cpu_files(graphs, aot))
    assert verdict == WARM
    assert reasons[0].startswith(
        f"warm: {counted(graphs, 'graph')}, FX cache {counted(graphs, 'hit')} 0 misses"
    )
    assert reasons[0].endswith("0 binaries built")


def test_a_cell_that_compiles_nothing_has_no_cache_state():
    seen = cold(0, after={}, counters={}, spawned=[])
    assert judge("none", seen) == (NOT_APPLICABLE, [])


def test_a_cell_without_a_cache_that_left_something_in_one_is_indeterminate():
    seen = replace(cold(0, after={}, counters={}, spawned=[]), after=SEALED)
    verdict, reasons = judge("none", seen)
    assert (verdict, len(reasons)) == (INDETERMINATE, 1)
    assert reasons[0] == f"{min(SEALED)} was written to the cache of a cell without one"


def test_graphs_without_a_cache_are_fine_for_a_capture_only_backend_and_not_for_eager():
    seen = replace(cold(0, after={}, counters={}, spawned=[]), graphs=1)
    assert judge("none", seen, compiles=True) == (NOT_APPLICABLE, [])
    verdict, reasons = judge("none", seen, compiles=False)
    assert (verdict, reasons) == (INDETERMINATE, ["something was compiled in a cell that compiles nothing"])


@pytest.mark.parametrize("aot", [True, False], ids=["2.13", "2.6"])
@pytest.mark.parametrize(("declared", "seen"), [("cold", cold), ("warm", warm)])
def test_a_graph_of_a_backend_without_a_cache_needs_no_lookup(declared, seen, aot):
    found = replace(seen(3, aot), graphs=5)
    sealed = cpu_files(3, aot)
    verdict, reasons = judge(declared, found, sealed)
    assert verdict == INDETERMINATE
    assert any("for 5 graphs" in reason for reason in reasons)
    verdict, reasons = judge(declared, replace(found, cacheless={"graphs": 2, "unfinished": 0}), sealed)
    assert (verdict, len(reasons)) == (f"{declared}-proven", 1)
    assert "3 graphs" in reasons[0]


def test_an_unfinished_graph_of_a_backend_without_a_cache_missed_nothing():
    begun = with_counter(cold(3), "aot_autograd", total=4)
    told = "the AOTAutograd cache saved 3 entries for 2 misses"
    assert told in judge("cold", begun)[1]
    assert judge("cold", replace(begun, cacheless={"graphs": 0, "unfinished": 1}))[0] == COLD


def test_graphs_without_a_cache_alone_prove_no_cache_state():
    seen = replace(cold(0, counters={}), graphs=2, cacheless={"graphs": 2, "unfinished": 0})
    verdict, reasons = judge("cold", seen)
    assert verdict == INDETERMINATE
    assert "nothing was compiled" in reasons


def test_hits_on_entries_of_the_same_process_leave_a_cell_cold():
    seen = cold(3, counters=hits(3, misses=2))
    assert judge("cold", seen)[0] == COLD


def test_more_misses_than_graphs_leave_a_cell_cold():
    assert judge("cold", with_counter(cold(3), "inductor", fxgraph_cache_miss=6))[0] == COLD


def test_more_hits_than_graphs_leave_a_cell_warm():
    """Training looks up forward and backward."""
    assert judge("warm", with_counter(warm(3), "inductor", fxgraph_cache_hit=6), SEALED)[0] == WARM


def test_one_compiler_process_that_builds_nothing_leaves_a_cell_warm():
    assert judge("warm", warm(spawned=[*ASKED, ["g++", "-v"], []]), SEALED)[0] == WARM


# Disagreement: each objection alone.

COMMON = {
    "the FX graph cache is off": lambda seen: replace(seen, capabilities={**ON_213, "fx_graph_cache": False}),
    "counter inductor.fxgraph_cache_bypass is 1": lambda seen: with_counter(
        seen, "inductor", fxgraph_cache_bypass=1
    ),
    "counter inductor.fxgraph_cache_write_error is 1": lambda seen: with_counter(
        seen, "inductor", fxgraph_cache_write_error=1
    ),
    "counter inductor.fxgraph_cache_pickle_error is 2": lambda seen: with_counter(
        seen, "inductor", fxgraph_cache_pickle_error=2
    ),
    "counter aot_autograd.autograd_cache_bypass is 1": lambda seen: with_counter(
        seen, "aot_autograd", autograd_cache_bypass=1
    ),
    "counter aot_autograd.autograd_cache_guard_miss is 1": lambda seen: with_counter(
        seen, "aot_autograd", autograd_cache_guard_miss=1
    ),
    "counter inductor.fx_remote_cache_hit is 1": lambda seen: with_counter(
        seen, "inductor", fx_remote_cache_hit=1
    ),
    "precompiled headers changed: abc.h.gch is new": lambda seen: replace(
        seen, headers_changed="abc.h.gch is new"
    ),
    "files were written outside the cache folder, home/cache/x among them": lambda seen: replace(
        seen, foreign=["home/cache/x"]
    ),
    "a saved profile (PGO) was used: dynamo/code_state_j1_None_.pkl": lambda seen: replace(
        seen, after=seen.after | entries("dynamo/code_state_j1_None_.pkl")
    ),
    "a bisect folder in the cache changes what is compiled": lambda seen: replace(
        seen, after=seen.after | entries("bisect/state")
    ),
    "nothing was compiled": lambda seen: replace(seen, graphs=0),
}

COLD_OBJECTIONS = {
    "the cache folder held 1 file before the process started": lambda seen: replace(
        seen, before=entries("bv/c0.py")
    ),
    "the FX graph cache counts no miss": lambda seen: replace(
        seen, counters={**seen.counters, "inductor": {"fxgraph_cache_hit": 3}}
    ),
    "the FX graph cache counts 2 lookups for 3 graphs": lambda seen: with_counter(
        seen, "inductor", fxgraph_cache_miss=2
    ),
    "the AOTAutograd cache counts no miss": lambda seen: without_counter(
        seen, "aot_autograd", "autograd_cache_miss"
    ),
    "the AOTAutograd cache counts 2 lookups for 3 graphs": lambda seen: with_counter(
        seen, "aot_autograd", autograd_cache_miss=2, autograd_cache_saved=2
    ),
    "the AOTAutograd cache saved 2 entries for 3 misses": lambda seen: with_counter(
        seen, "aot_autograd", autograd_cache_saved=2
    ),
    "1 new binary, zz/c.so among them, but 0 compiler processes": lambda seen: replace(
        seen, after=seen.after | entries("zz/c.so")
    ),
    "a compiler process wrote zz/c.so, which is not in the cache": lambda seen: replace(
        seen, spawned=seen.spawned + built("zz/c.so")
    ),
    "no generated code was written to the cache": lambda seen: replace(
        seen, after=entries("fxgraph/5w/f0/entry"), spawned=ASKED
    ),
}

WARM_OBJECTIONS = {
    "before the start the cache was not the sealed one: 2i/c0.main.so is missing": lambda seen: replace(
        seen, before={name: entry for name, entry in seen.before.items() if name != "2i/c0.main.so"}
    ),
    "the cache changed: zz/new.py is new": lambda seen: replace(
        seen, after=seen.after | entries("zz/new.py")
    ),
    "the cache changed: bv/c0.py was altered": lambda seen: replace(
        seen, after=seen.after | {"bv/c0.py": {"sha256": "f" * 64, "bytes": len("bv/c0.py")}}
    ),
    "the FX graph cache counts 1 miss": lambda seen: with_counter(seen, "inductor", fxgraph_cache_miss=1),
    "the FX graph cache counts 2 hits for 3 graphs": lambda seen: with_counter(
        seen, "inductor", fxgraph_cache_hit=2
    ),
    "the AOTAutograd cache counts 1 miss": lambda seen: with_counter(
        seen, "aot_autograd", autograd_cache_miss=1
    ),
    "the AOTAutograd cache counts 0 hits for 3 graphs": lambda seen: without_counter(
        seen, "aot_autograd", "autograd_cache_hit"
    ),
    "1 compiler process built binaries, 2i/c0.main.so among them": lambda seen: replace(
        seen, spawned=seen.spawned + built("2i/c0.main.so")
    ),
    "1 compiler or assembler process made binaries elsewhere": lambda seen: replace(
        seen, spawned=[*seen.spawned, ["gcc", "main.c", "-shared", "-o", "/tmp/other/launcher.so"]]
    ),
}


@pytest.mark.fault("T6", "a cold state with one witness against it")
@pytest.mark.parametrize("reason", COMMON | COLD_OBJECTIONS)
def test_a_cold_cell_with_one_witness_against_it_is_indeterminate(reason):
    verdict, reasons = judge("cold", (COMMON | COLD_OBJECTIONS)[reason](cold()))
    assert verdict == INDETERMINATE
    assert any(told.startswith(reason) for told in reasons)


@pytest.mark.fault("T6", "a warm state with one witness against it")
@pytest.mark.parametrize("reason", COMMON | WARM_OBJECTIONS)
def test_a_warm_cell_with_one_witness_against_it_is_indeterminate(reason):
    verdict, reasons = judge("warm", (COMMON | WARM_OBJECTIONS)[reason](warm()), SEALED)
    assert verdict == INDETERMINATE
    assert any(told.startswith(reason) for told in reasons)


def test_a_warm_cell_without_a_sealed_cache_is_indeterminate():
    assert judge("warm", warm(), None) == (INDETERMINATE, ["there is no sealed cold cache to compare with"])


@pytest.mark.parametrize("declared", ["cold", "warm"])
def test_more_witnesses_against_a_cell_never_make_it_proven_again(declared):
    objections = COMMON | (COLD_OBJECTIONS if declared == "cold" else WARM_OBJECTIONS)
    draw = random.Random(11)
    for _ in range(200):
        seen = cold() if declared == "cold" else warm()
        for reason in draw.sample(sorted(objections), draw.randint(1, 4)):
            seen = objections[reason](seen)
        verdict, reasons = judge(declared, seen, SEALED)
        assert verdict == INDETERMINATE
        assert reasons


def test_a_cold_process_is_not_warm_and_a_warm_one_is_not_cold():
    assert judge("warm", cold(), SEALED)[0] == INDETERMINATE
    assert judge("cold", warm())[0] == INDETERMINATE


# Whole stories in which the witnesses disagree.


def test_hits_on_every_graph_while_a_compiler_built_a_kernel():
    verdict, reasons = judge("warm", warm(spawned=ASKED + built("2i/c1.main.so")), SEALED)
    assert verdict == INDETERMINATE
    assert reasons == ["1 compiler process built binaries, 2i/c1.main.so among them"]


@pytest.mark.fault("T3", "a cold process in a used cache folder")
def test_misses_on_every_graph_while_the_folder_held_the_kernels():
    """Another key on an old folder: shared objects are reused under missing counters."""
    verdict, reasons = judge("cold", cold(before=SEALED, spawned=ASKED))
    assert verdict == INDETERMINATE
    assert reasons == [f"the cache folder held {len(SEALED)} files before the process started"]


@pytest.mark.fault("T6", "counters of a cache that is off")
def test_a_warm_folder_with_the_cache_turned_off():
    """No counter is raised, yet the kernels are reused and nothing changes on disk."""
    off = warm(
        capabilities={**ON_213, "fx_graph_cache": False},
        counters={"aot_autograd": {"autograd_cache_bypass": 3}},
    )
    verdict, reasons = judge("warm", off, SEALED)
    assert verdict == INDETERMINATE
    assert "the FX graph cache is off, so counters cannot tell its state" in reasons
    assert "the FX graph cache counts 0 hits for 3 graphs" in reasons


@pytest.mark.fault("T6", "a kernel rebuilt under hits")
def test_a_deleted_kernel_is_rebuilt_under_hits():
    """Counters say 3 hits and the folder ends as it was sealed: only two witnesses notice."""
    before = {name: entry for name, entry in SEALED.items() if name != "2i/c2.main.so"}
    verdict, reasons = judge("warm", warm(before=before, spawned=ASKED + built("2i/c2.main.so")), SEALED)
    assert verdict == INDETERMINATE
    assert reasons == [
        "before the start the cache was not the sealed one: 2i/c2.main.so is missing",
        "the cache changed: 2i/c2.main.so is new",
        "1 compiler process built binaries, 2i/c2.main.so among them",
    ]


def test_a_cold_folder_in_which_a_kernel_appeared_without_a_compiler():
    """Someone else's process shared the folder."""
    spawned = ASKED + built("24/probe.so", "2i/c0.main.so", "2i/c1.main.so")
    verdict, reasons = judge("cold", cold(spawned=spawned))
    assert verdict == INDETERMINATE
    assert reasons == [
        "1 new binary, 2i/c2.main.so among them, but 0 compiler processes that could have made them"
    ]


def test_on_a_release_without_an_autograd_cache_its_counters_are_not_asked_for():
    assert judge("cold", cold(aot=False))[0] == COLD
    assert judge("cold", cold(aot=False, capabilities=ON_213))[0] == INDETERMINATE


# CUDA: Triton assembles outside the cache and moves the result in.

PTXAS = ["/opt/triton/backends/nvidia/bin/ptxas", "-lineinfo", "-v", "--gpu-name=sm_90a"]
CUBINS = ("triton/0/AAA/triton_poi.cubin", "triton/0/BBB/triton_red.cubin")
LAUNCHER = "triton/CCC/cuda_utils.cpython-311-x86_64-linux-gnu.so"


def assembled(*names: str) -> list[list[str]]:
    return [[*PTXAS, f"/tmp/x/tmp/{name}.ptx", "-o", f"/tmp/x/tmp/{name}.ptx.o"] for name in names]


def on_cuda(**changes) -> Observed:
    files = entries(
        "fxgraph/5w/f0/entry",
        "aotautograd/a0/entry",
        "bv/c0.py",
        *CUBINS,
        "triton/0/AAA/triton_poi.ptx",
        LAUNCHER,
    )
    launcher = [
        "/usr/bin/gcc",
        "/tmp/x/tmp/y/main.c",
        "-O3",
        "-shared",
        "-fPIC",
        "-o",
        "/tmp/x/tmp/y/cuda_utils.so",
    ]
    return cold(1, **{"after": files, "spawned": [*ASKED, *assembled("a", "b"), launcher], **changes})


def test_cubins_are_explained_by_assembler_processes():
    seen = on_cuda()
    assert (seen.assemblers(), seen.built_elsewhere(), seen.built()) == (2, 3, set())
    assert judge("cold", seen)[0] == COLD


def test_cubins_without_assembler_processes_are_indeterminate():
    verdict, reasons = judge("cold", on_cuda(spawned=ASKED))
    assert verdict == INDETERMINATE
    assert reasons[0].startswith(
        "3 new binaries, triton/0/AAA/triton_poi.cubin among them, but 0 compiler processes"
    )


def test_one_assembler_process_explains_one_cubin():
    one = [*PTXAS, "/tmp/x/tmp/a.ptx", "-o", "/tmp/x/tmp/a.cubin"]
    files = entries("fxgraph/5w/f0/entry", "aotautograd/a0/entry", "bv/c0.py", *CUBINS)
    assert judge("cold", on_cuda(after=files, spawned=[*ASKED, one]))[0] == INDETERMINATE
    other = [*PTXAS, "/tmp/x/tmp/b.ptx", "-o", "/tmp/x/tmp/b.cubin"]
    assert judge("cold", on_cuda(after=files, spawned=[*ASKED, one, other]))[0] == COLD


def test_a_warm_cell_that_assembles_is_indeterminate():
    files = on_cuda().after
    seen = on_cuda(before=files, counters=hits(1), spawned=[*ASKED, *assembled("a")])
    verdict, reasons = judge("warm", seen, files)
    assert verdict == INDETERMINATE
    assert reasons == ["1 compiler or assembler process made binaries elsewhere"]


# Which file a process writes.


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["g++", "a.cpp", "-o", "a.so"], "a.so"),
        (["g++ a.cpp -shared -o a.so"], "a.so"),
        (["/bin/sh", "-c", "g++ a.cpp -shared -o a.so"], "a.so"),
        (["g++", "-E", "-P", "a.h", "-o", "a.i"], ""),
        (["g++", "--version"], ""),
        (["g++", "-o"], ""),
        ([""], ""),
        ([], ""),
    ],
)
def test_the_file_a_compiler_call_writes(words, target):
    assert cache.output_of(words) == target


@pytest.mark.parametrize(
    ("words", "program"),
    [(["/opt/bin/ptxas", "-v"], "/opt/bin/ptxas"), (["ptxas -v x.ptx"], "ptxas"), ([], ""), ([""], "")],
)
def test_the_program_of_a_call(words, program):
    assert cache.first_word(words) == program
