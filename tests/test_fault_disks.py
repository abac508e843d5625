"""A full disk, or one that cannot be written, is told in words; nothing cut short passes for evidence."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import stub
from complab import attempts, evidence
from complab.errors import EXIT_ENVIRONMENT, EnvironmentProblem
from complab.measure import isolation
from stub import PLAIN, RUN
from trouble import NO_ROOM, bound_by_permissions, read_only, small_disk


@pytest.fixture
def plain(tmp_path):
    """A stub project with one cell that compiles nothing."""
    return stub.make(tmp_path, {"plain": ["none"]})


def no_room(told: str) -> bool:
    return any(words in told for words in NO_ROOM)


def measured(project: stub.Stub, **options) -> None:
    """Measure the cell by hand, and check that it is whole."""
    status, _, complaints = project.script("--policy", "plain", "--out", project.folder(PLAIN), **options)
    assert status == 0, complaints
    assert evidence.verify(project.folder(PLAIN), RUN, PLAIN).determinate


@pytest.mark.fault("T4", "disk full: results, when the evidence is written")
def test_evidence_that_does_not_fit_is_a_failure_with_its_reason_and_no_table_is_cut_short(plain):
    plain.plant("rows", "20000")
    with small_disk(plain.project / "results", 256 * 1024) as options:
        status, told = plain.snakemake("evidence", **options)
        assert status != 0
        assert no_room(told)
        record = evidence.verify(plain.folder(PLAIN), RUN, PLAIN)
        assert record.failed
        assert no_room(record.provenance["failure"]["message"])
        assert [path.name for path in plain.results.rglob("*.csv")] == []
        assert [event["event"] for event in attempts.read(plain.results)] == ["started", "failed"]
    plain.heal("rows")
    measured(plain)


@pytest.mark.fault("T4", "disk full: results, without room for a record of the failure")
def test_a_failure_that_cannot_even_be_recorded_is_told_and_the_job_fails(plain):
    folder = plain.project / "results"
    with small_disk(folder, 64 * 1024) as options:
        filler = None if options else folder / "filler"
        if filler:
            fill(filler)
        status, _, complaints = plain.script(
            "--policy", "plain", "--out", plain.folder(PLAIN), "--record-failure", **limited(options, 1)
        )
        assert status not in (0, 2)
        assert no_room(complaints)
        assert "Traceback" not in complaints
        assert list(folder.rglob(evidence.EVIDENCE)) == []
        if filler:
            filler.unlink()
            measured(plain)
    measured(plain)


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with open(path, "wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(1024))
        except OSError:
            pass


def limited(options: dict, size: int) -> dict:
    """The options of `small_disk` with a tighter limit, where it is one of file sizes."""
    return options and {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))}


@pytest.mark.fault("T4", "disk full: the memory of Snakemake")
def test_without_room_for_snakemakes_memory_nothing_passes_for_evidence_that_is_none(plain):
    folder = plain.project / ".snakemake"
    with small_disk(folder, 64 * 1024) as options:
        if not options:
            fill(folder / "filler")
        status, told = plain.snakemake("evidence", **limited(options, 1))
        assert status != 0
        assert no_room(told)
        for path in plain.results.rglob(evidence.PROVENANCE):
            evidence.verify(path.parent, RUN, PLAIN)
    status, told = plain.snakemake("evidence", "--rerun-incomplete")
    assert status == 0, told
    assert evidence.verify(plain.folder(PLAIN), RUN, PLAIN).determinate


@pytest.mark.fault("T4", "disk full: the private folder of a measurement")
def test_a_measurement_without_room_to_work_is_a_failure_with_its_reason(plain, tmp_path):
    scratch = tmp_path / "scratch"
    plain.plant("rows", "20000")
    with small_disk(scratch, 256 * 1024) as options:
        status, _, _ = plain.script(
            *("--policy", "plain", "--out", plain.folder(PLAIN), "--record-failure"),
            overrides={"scratch": str(scratch)},
            **options,
        )
        assert status == 0
        record = evidence.verify(plain.folder(PLAIN), RUN, PLAIN)
        assert record.failed
        assert no_room(record.provenance["failure"]["message"])
        assert [path.name for path in scratch.iterdir()] == []
    plain.heal("rows")
    measured(plain)


# What cannot be written.


def places(tmp_path: Path) -> dict[str, Path]:
    """Folders that cannot be written, each in its own way."""
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir()
    return {
        "under a file": tmp_path / "file" / "folder",
        "not there": tmp_path / "nowhere",
        "read-only": tmp_path / "locked",
    }


@pytest.mark.fault("T10", "a scratch folder under a file, missing, read-only")
@pytest.mark.parametrize("why", ["under a file", "not there", "read-only"])
def test_a_scratch_folder_that_cannot_be_written_is_named_before_anything_is_measured(plain, tmp_path, why):
    scratch = places(tmp_path)[why]
    with read_only(tmp_path / "locked"):
        status, _, complaints = plain.script(
            *("--policy", "plain", "--out", tmp_path / "cell"),
            overrides={"scratch": str(scratch)},
            preexec_fn=bound_by_permissions,
        )
    assert status == EXIT_ENVIRONMENT
    assert f"scratch: '{scratch}' cannot be written" in complaints
    assert "set scratch in config.yaml to a writable folder" in complaints
    assert not (tmp_path / "cell").exists()


@pytest.mark.fault("T10", "HOME under a file, missing, read-only")
@pytest.mark.parametrize("why", ["under a file", "not there", "read-only"])
def test_a_home_that_cannot_be_written_keeps_nothing_from_being_measured(plain, tmp_path, why):
    home = places(tmp_path)[why]
    with read_only(tmp_path / "locked"):
        measured(plain, variables={"HOME": str(home)}, preexec_fn=bound_by_permissions)


@pytest.mark.fault("T10", "a TMPDIR that is not honoured by the measured process")
def test_a_process_that_used_another_temporary_folder_than_its_own_is_refused(plain):
    plain.plant("temporary", "/tmp")
    status, _, complaints = plain.script("--policy", "plain", "--out", plain.folder(PLAIN))
    assert status == EXIT_ENVIRONMENT
    assert "process 'timed' used /tmp instead of its private TMPDIR" in complaints
    assert not plain.folder(PLAIN).exists()


@pytest.mark.fault("T10", "a TMPDIR that is missing")
def test_a_missing_tmpdir_of_the_caller_reaches_no_measurement(plain, tmp_path):
    measured(plain, variables={"TMPDIR": str(tmp_path / "nowhere")})
    told = plain.record(PLAIN)["variables"]
    assert told["TMPDIR"] == "$TMP/tmp"


@pytest.mark.fault("T10", "results that cannot be written, through the rules")
def test_results_that_cannot_be_written_end_the_run_in_one_line(plain):
    (plain.project / "results").mkdir()
    with read_only(plain.project / "results"):
        status, told = plain.snakemake("evidence", preexec_fn=bound_by_permissions)
    assert status == EXIT_ENVIRONMENT
    assert (
        told.rstrip()
        .splitlines()[-1]
        .startswith(f"complab: {plain.project}/results/.lock: cannot be written (Permission denied)")
    )


@pytest.mark.fault("T10", "a measuring lock that cannot be opened")
def test_a_measuring_lock_that_cannot_be_opened_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(isolation, "LOCK", tmp_path / "nowhere" / "lock")
    with (
        pytest.raises(EnvironmentProblem, match="the measuring lock cannot be opened"),
        isolation.host_lock(print),
    ):
        pass


@pytest.mark.fault("T10", "exhibits that cannot be written")
def test_exhibits_that_cannot_be_written_are_told_in_one_line(plain):
    measured(plain)
    words = {"run": RUN, "scale": "quick", "python": str(plain.python)}
    argv = [sys.executable, "scripts/pipeline.py", "--overrides", json.dumps(words), "ledgers"]
    with read_only(plain.project / "figures"):
        refused = subprocess.run(
            argv,
            cwd=plain.project,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=bound_by_permissions,
            env={**os.environ, "MPLCONFIGDIR": "/tmp"},
        )
    assert refused.returncode == 1
    assert refused.stderr.startswith("complab: [Errno 13] Permission denied")
    assert refused.stderr.rstrip().endswith("make room or make it writable")
