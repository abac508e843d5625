"""Whatever is killed, and whoever starts a second time: no number comes of half a measurement, none twice."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import stub
from complab import attempts, evidence, startup
from complab.errors import Problem, UsageProblem
from complab.measure import isolation
from stub import COLD, OTHER, PLAIN, RUN, gone, wait_for

pytestmark = pytest.mark.usefixtures("interruptible")


@pytest.fixture(autouse=True)
def nothing_left():
    """Whatever a test that fails leaves running ends with it."""
    yield
    stub.end_what_runs()


@pytest.fixture
def cold(tmp_path):
    """A stub project with one cold cell."""
    return stub.make(tmp_path, {"default": ["cold"]})


@pytest.fixture
def plain(tmp_path):
    """A stub project with two cells that compile nothing."""
    return stub.make(tmp_path, {"plain": ["none"], "other": ["none"]})


def events(project: stub.Stub, cell=COLD) -> list[str]:
    return [each["event"] for each in attempts.read(project.results) if each["cell"] == str(cell)]


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def nothing_published(project: stub.Stub) -> bool:
    """Whether no cell has a file, but for the empty log that Snakemake makes of a job that failed."""
    found = [path for path in project.results.rglob("*") if path.is_file() and path.stat().st_size]
    return {path.name for path in found} <= {"planned.txt", attempts.FILE}


def test_while_a_cell_is_measured_snakemake_does_not_choose_jobs_again_and_again(plain):
    plain.plant("block")
    run = plain.start("evidence", "--verbose", start_new_session=True)
    plain.blocked()
    time.sleep(3)
    os.killpg(run.pid, signal.SIGKILL)
    told, _ = run.communicate(timeout=60)
    assert told.count("Ready jobs: ") == 1


KILLED = {
    "the job": lambda run, job: os.kill(job, signal.SIGKILL),
    "Snakemake": lambda run, job: run.kill(),
    "both at once": lambda run, job: os.killpg(run.pid, signal.SIGKILL),
    "Ctrl-C": lambda run, job: os.killpg(run.pid, signal.SIGINT),
}


@pytest.mark.fault("T1", "kill -9 of the job, of Snakemake, of both in the middle of a cell; Ctrl-C")
@pytest.mark.fault("T3", "rerun after a kill with entries in the cache folder")
@pytest.mark.parametrize("what", KILLED)
def test_a_kill_in_the_middle_of_a_cell_leaves_nothing_and_the_same_command_measures_once(cold, what):
    cold.plant("block")
    run = cold.start("evidence", start_new_session=True)
    measured, compiler = cold.blocked()
    job = parent_of(measured)
    scratch = Path(f"/proc/{measured}/cwd").resolve().parents[1]
    (scratch / "cache" / "fxgraph").mkdir()
    (scratch / "cache" / "fxgraph" / "entry").write_text("of the first attempt")
    KILLED[what](run, job)
    wait_for(lambda: gone(measured) and gone(job), "the end of the cell's processes", 60)
    run.wait(timeout=60)
    assert run.returncode != 0
    assert nothing_published(cold)
    assert events(cold) == ["started"]

    cold.heal("block")
    status, told = cold.snakemake("evidence")
    assert status == 0, told
    assert gone(compiler)
    record = evidence.verify(cold.folder(COLD), RUN, COLD)
    assert record.verdict == "cold-proven"
    assert events(cold) == ["started", "started", "measured"]
    last = attempts.read(cold.results)[-1]
    assert last["provenance"] == evidence.sha256_of(cold.folder(COLD) / evidence.PROVENANCE)
    assert not scratch.exists()
    assert [path.name for path in cold.folder(COLD).parent.iterdir()] == ["1"]


@pytest.mark.fault("T1", "a killed process whose status nobody has asked for")
def test_a_process_that_was_killed_is_not_alive_even_before_its_parent_knows():
    waiting = subprocess.Popen(["sleep", "600"])
    assert isolation.alive(str(waiting.pid))
    os.kill(waiting.pid, signal.SIGKILL)
    wait_for(lambda: gone(waiting.pid), "its end", 20)
    assert not isolation.alive(str(waiting.pid))
    waiting.wait()
    assert not isolation.alive(str(waiting.pid))


@pytest.mark.fault("T3", "a private folder that a killed measurement left")
def test_a_measurement_starts_in_an_empty_folder_of_its_own_and_clears_what_a_dead_one_left(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, alive = tmp_path / f"complab-{ended.pid}-x", tmp_path / f"complab-{os.getpid()}-x"
    for folder in (dead, alive):
        (folder / "cache").mkdir(parents=True)
        (folder / "cache" / "entry").write_text("used")
    with isolation.workplace(str(tmp_path)) as place:
        assert list(place.cache.iterdir()) == []
        assert place.root not in (dead, alive)
    assert not dead.exists()
    assert (alive / "cache" / "entry").exists()


@pytest.mark.fault("T2", "kill between evidence.csv and its record, memory of Snakemake deleted")
def test_evidence_whose_record_was_never_written_is_refused_and_measured_again(plain):
    text = (plain.project / "scripts/complab/evidence.py").read_text()
    last = "    write_atomically(folder / PROVENANCE"
    assert text.count(last) == 1
    marker = plain.control / "die"
    die = f"    if Path({str(marker)!r}).exists():\n        os.kill(os.getpid(), 9)\n"
    (plain.project / "scripts/complab/evidence.py").write_text(text.replace(last, die + last))
    plain.plant("die")
    status, _, _ = plain.script("--policy", "plain", "--out", plain.folder(PLAIN))
    assert status == -signal.SIGKILL
    assert (plain.folder(PLAIN) / evidence.EVIDENCE).exists()
    assert not (plain.folder(PLAIN) / evidence.PROVENANCE).exists()
    shutil.rmtree(plain.project / ".snakemake", ignore_errors=True)

    words = {"run": RUN, "scale": "quick", "python": str(plain.python)}
    for step in (["draw", "--experiment", stub.NAME], ["complete"]):
        argv = [sys.executable, "scripts/pipeline.py", "--overrides", json.dumps(words), *step]
        refused = subprocess.run(argv, cwd=plain.project, capture_output=True, text=True, check=False)
        assert refused.returncode == 4
        assert "provenance.json: missing, so the files beside it are no evidence" in refused.stderr

    plain.heal("die")
    status, told = plain.snakemake("evidence")
    assert status == 0, told
    assert evidence.verify(plain.folder(PLAIN), RUN, PLAIN).determinate
    assert events(plain, PLAIN) == ["started", "started", "measured"]


# Two runs at once.


@pytest.mark.fault("T11", "two runs of one project: the same targets, disjoint ones, one that only looks")
def test_a_second_run_ends_at_once_with_the_holders_id_and_looking_is_allowed(plain):
    plain.plant("block")
    first = plain.start("evidence", "--keep-going")
    measured, compiler = plain.blocked()
    listed = (plain.results / attempts.FILE).read_bytes()
    for target in ("evidence", f"results/{RUN}/{OTHER.path}/provenance.json", "exhibits"):
        status, told = plain.snakemake(target)
        assert status == 1
        assert f"complab: another run, process {first.pid}, is at work in {plain.project}" in told
        assert "Traceback" not in told
    status, told = plain.snakemake("-n", "evidence")
    assert status == 0, told
    assert (plain.results / attempts.FILE).read_bytes() == listed
    plain.heal("block")
    os.kill(measured, signal.SIGKILL)
    told, _ = first.communicate(timeout=120)
    assert gone(compiler)
    assert "was killed by SIGKILL" in told
    assert events(plain, PLAIN) == ["started", "failed"]
    assert events(plain, OTHER) == ["started", "measured"]


@pytest.mark.fault("T11", "the lock of a run that was killed")
def test_the_lock_goes_with_its_process(tmp_path):
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom complab import startup\n"
        "startup.only_run(Path(sys.argv[1]))\nprint('held', flush=True)\nsignal.pause()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(startup.__file__).parents[1])}
    argv = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Problem, match=f"another run, process {holder.pid}, is at work"):
            startup.only_run(tmp_path)
        holder.kill()
        holder.wait()
        os.close(startup.only_run(tmp_path))


APPEND = """
import sys
from pathlib import Path
from complab import attempts
for number in range(100):
    attempts.append(Path(sys.argv[1]), {"event": "started", "cell": sys.argv[2] * 2000, "attempt": number})
"""


@pytest.mark.fault("T11", "two measurements that note their attempts at once")
def test_attempts_noted_at_once_are_whole_lines_of_one_chain(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(startup.__file__).parents[1])}
    writers = [
        subprocess.Popen([sys.executable, "-c", APPEND, str(tmp_path), name], env=environment)
        for name in "abc"
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    noted = attempts.read(tmp_path)
    for name in "abc":
        own = [event["attempt"] for event in noted if event["cell"] == name * 2000]
        assert own == list(range(100))


@pytest.mark.fault("T11", "two measurements on one machine, whatever their TMPDIR")
def test_the_measuring_lock_is_the_machines_whatever_tmpdir_says(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert isolation.LOCK.parent == Path("/tmp")


# Failures and the flags that would hide them.


@pytest.mark.fault("T17", "a failing cell with --keep-going and --retries")
def test_a_failing_cell_stops_no_other_is_told_as_failed_and_keeps_each_log(tmp_path):
    project = stub.make(tmp_path, {"plain": ["none"], "other": ["none"]})
    broken = 'if told["policy"] == "plain" and (control / "fail").exists():'
    text = Path(stub.__file__).with_name("stub_child.py").read_text()
    child = project.control / "child.py"
    child.write_text(text.replace('if (control / "fail").exists():', broken))
    assert broken in child.read_text()
    interpreter = project.python.read_text()
    project.python.write_text(
        interpreter.replace(str(Path(stub.__file__).with_name("stub_child.py")), str(child))
    )
    project.plant("fail")
    for attempt in (1, 2):
        status, told = project.snakemake("evidence", "--keep-going", "--retries", "1")
        assert status != 0
        assert f"failed: {PLAIN}: process 'timed' ended with status 1: RuntimeError: planted failure" in told
        assert project.record(PLAIN)["outcome"] == "failed"
        assert project.record(PLAIN)["attempt"] == attempt
        assert evidence.verify(project.folder(OTHER), RUN, OTHER).determinate
    assert events(project, OTHER) == ["started", "measured"]
    assert events(project, PLAIN) == ["started", "failed"] * 2
    logs = [each["log"] for each in attempts.read(project.results) if each["event"] == "failed"]
    assert len(set(logs)) == 2
    for digest in logs:
        kept = project.results / attempts.LOGS / f"{digest}.log"
        assert evidence.sha256_of(kept) == digest
        assert "planted failure" in kept.read_text()


def workflow(**changes) -> SimpleNamespace:
    """What Snakemake tells of a run that executes, without any flag."""
    flags = {"keep_incomplete": False, "ignore_incomplete": False, "touch": False, "ancient": {}}
    flags |= {"triggers": {"mtime", "params", "input", "software-env", "code"}} | changes
    return SimpleNamespace(
        execution_settings=SimpleNamespace(
            keep_incomplete=flags["keep_incomplete"], ignore_incomplete=flags["ignore_incomplete"]
        ),
        dag_settings=SimpleNamespace(rerun_triggers=flags["triggers"]),
        workflow_settings=SimpleNamespace(consider_ancient=flags["ancient"]),
        touch=flags["touch"],
        dryrun=False,
        is_main_process=True,
    )


@pytest.mark.fault("T17", "flags that let a failed, unfinished or stale file pass")
@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--keep-incomplete", {"keep_incomplete": True}),
        ("--ignore-incomplete", {"ignore_incomplete": True}),
        ("--touch", {"touch": True}),
        ("--rerun-triggers", {"triggers": {"mtime"}}),
        ("--rerun-triggers", {"triggers": set()}),
        ("--consider-ancient", {"ancient": {"e98_stub": {0}}}),
    ],
)
def test_a_forbidden_flag_is_refused_by_its_name(flag, given, tmp_path):
    startup.refuse_flags(workflow())
    with pytest.raises(UsageProblem, match=f"^{flag}: would let .* pass for evidence; leave it out$"):
        startup.begin(workflow(**given), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("T17", "--keep-incomplete, --touch and --rerun-triggers on Snakemake's command line")
@pytest.mark.parametrize("words", [["--keep-incomplete"], ["--touch"], ["--rerun-triggers", "mtime", "--"]])
def test_snakemake_with_a_forbidden_flag_measures_nothing(words, tmp_path):
    project = stub.make(tmp_path, {"plain": ["none"]})
    status, told = project.snakemake(*words, "evidence")
    assert status == 2
    assert told.rstrip().splitlines()[-1].startswith(f"complab: {words[0]}: would let ")
    assert nothing_published(project)
    assert not (project.results / attempts.FILE).exists()
