"""The pipeline end to end, on real compilation, in a copy of the project whose path has a space."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from complab import attempts, config, evidence
from complab.config import Cell
from project_copy import copy_project, edit_config

pytestmark = pytest.mark.slow

RUN = "current-quick"
E6 = "e6_dynamic_shapes"

FRAGILE = '''"""Does one broken policy stop the other?"""

if __name__ == "__main__":
    from complab.cell import main

    main(__file__)

from pathlib import Path

import torch


def timed(bench):
    """Fail for policy `broken` while the marker file is there."""
    if bench.policy == "broken" and Path({marker!r}).exists():
        raise RuntimeError("planted failure")
    x = torch.ones(8)
    bench.steady({{"sum": (lambda: x.sum(), None)}})
'''


def snakemake(project: Path, *words: str, scale: str = "quick") -> subprocess.CompletedProcess:
    """Run Snakemake in the copy, as a person would inside the environment."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    argv = ["snakemake", "--cores", "1", *words, "--config", f"scale={scale}"]
    return subprocess.run(argv, cwd=project, env=environment, capture_output=True, text=True, check=False)


def told(answer: subprocess.CompletedProcess) -> str:
    return answer.stdout + answer.stderr


def script(project: Path, name: str, *words: str) -> subprocess.CompletedProcess:
    """Run one of the copy's scripts by hand."""
    argv = [sys.executable, f"scripts/{name}.py", *words]
    return subprocess.run(argv, cwd=project, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A finished run of one experiment: eager, and static cold and warm."""
    project = copy_project(tmp_path_factory.mktemp("pipeline") / "with spæce in it")

    def only_static(values):
        values["experiments"] = {E6: values["experiments"][E6]}
        values["experiments"][E6]["policies"] = {"eager": ["none"], "static": ["cold", "warm"]}
        values["scales"]["quick"]["experiments"][E6]["policies"] = {"static": ["cold", "warm"]}

    edit_config(project, only_static)
    answer = snakemake(project)
    assert answer.returncode == 0, told(answer)
    return project


def record_of(project: Path, policy: str, cache: str, experiment: str = E6) -> evidence.Record:
    cell = Cell(experiment, policy, cache, 1)
    return evidence.verify(project / "results" / RUN / cell.path, RUN, cell)


def total(record: evidence.Record, metric: str) -> int:
    return int(sum(row.value for row in record.rows if row.metric == metric))


@pytest.mark.fault("T14", "real compilation in a project path with a space and beyond ASCII")
@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_static_fills_the_limit_is_refused_once_and_still_reuses_what_it_has(measured, cache):
    record = record_of(measured, "static", cache)
    fates = [
        row.metric
        for row in record.rows
        if row.metric in ("new_variants", "reuses", "refused_attempts", "eager_calls")
    ]
    assert fates == [*["new_variants"] * 3, "reuses", "refused_attempts", "eager_calls", "reuses"]
    assert total(record, "limit_hits") == 1
    assert record.verdict == f"{cache}-proven"
    region = json.loads((record.folder / "ledger.json").read_text())["regions"]["model"]
    assert region["first_failing_level"] == "STABLE"
    assert "size mismatch at index 1" in region["sentence"]


def test_eager_compiles_nothing_and_has_no_cache_state(measured):
    record = record_of(measured, "eager", "none")
    assert record.verdict == "not-applicable"
    assert not [row for row in record.rows if row.metric == "compiled_time"]


def test_warm_starts_from_what_cold_left_and_computes_the_same(measured):
    cold, warm = record_of(measured, "static", "cold"), record_of(measured, "static", "warm")
    assert warm.provenance["cache"]["before"] == cold.provenance["cache"]["after"]
    assert warm.provenance["cache"]["after"] == cold.provenance["cache"]["after"]
    assert warm.provenance["cache"]["compiler_processes"] == 0
    assert cold.provenance["cache"]["compiler_processes"] > 0
    differences = [
        [row.value for row in record.rows if row.metric == "max_abs_diff"] for record in (cold, warm)
    ]
    assert differences[0] == differences[1]


@pytest.mark.fault("T14", "folders of this machine in what is published")
def test_nothing_of_this_machine_is_in_the_published_files(measured):
    for path in (measured / "results" / RUN).rglob("*"):
        if path.suffix in (".csv", ".log", ".json"):
            text = path.read_text()
            assert str(measured) not in text
            assert str(Path.home()) + "/" not in text


@pytest.mark.fault("T16", "everything touched after a real run")
def test_a_finished_run_has_nothing_to_do_even_after_touching_everything(measured):
    for path in (measured / "scripts").rglob("*.py"):
        path.touch()
    answer = snakemake(measured, "-n")
    assert "Nothing to be done" in told(answer), told(answer)


def test_a_deleted_evidence_file_makes_its_cell_stale_and_is_named(measured):
    path = measured / "results" / RUN / E6 / "eager" / "none" / "1" / "evidence.csv"
    kept = path.read_bytes()
    path.unlink()
    try:
        answer = snakemake(measured, "-n")
    finally:
        path.write_bytes(kept)
    assert f"1 cell to measure ({E6}/eager/none/1): evidence.csv is missing" in told(answer)


@pytest.mark.fault("T5", "a real kernel truncated or deleted")
@pytest.mark.parametrize("damage", ["truncated", "deleted"])
def test_a_damaged_sealed_cache_makes_the_warm_cell_refuse(measured, tmp_path, damage):
    cold = tmp_path / "cold"
    shutil.copytree(measured / "results" / RUN / E6 / "static" / "cold" / "1", cold)
    with tarfile.open(cold / "cache.tar") as archive:
        archive.extractall(tmp_path / "files", filter="data")
    victim = next(path for path in sorted((tmp_path / "files").rglob("*.so")))
    name = victim.relative_to(tmp_path / "files").as_posix()
    if damage == "deleted":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:100])
    with tarfile.open(cold / "cache.tar", "w") as archive:
        archive.add(tmp_path / "files", arcname=".", recursive=False)
        for path in sorted((tmp_path / "files").rglob("*")):
            if path.is_file():
                archive.add(path, arcname=path.relative_to(tmp_path / "files").as_posix())
    rewrite_without_folder_member(cold / "cache.tar")
    words = ("--policy", "static", "--cache", "warm", "--scale", "quick")
    answer = script(measured, E6, *words, "--cold", str(cold), "--out", str(tmp_path / "warm"))
    assert answer.returncode == 4
    assert name in answer.stderr
    assert "measure the cold cell again" in answer.stderr
    assert not (tmp_path / "warm").exists()


@pytest.mark.fault("T5", "a cache that another machine sealed")
def test_a_cache_that_another_machine_sealed_is_never_loaded(measured, tmp_path):
    cold = measured / "results" / RUN / E6 / "static" / "cold" / "1"
    words = ("--policy", "static", "--cache", "warm", "--scale", "quick", "--cold", str(cold))
    argv = [sys.executable, f"scripts/{E6}.py", *words, "--out", str(tmp_path / "warm")]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "another machine")}
    answer = subprocess.run(argv, cwd=measured, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 4
    assert "was not sealed by this user on this machine" in answer.stderr
    assert not (tmp_path / "warm").exists()


def rewrite_without_folder_member(tar: Path) -> None:
    """Keep plain files only, as a sealed cache has them."""
    kept = tar.with_suffix(".kept")
    with tarfile.open(tar) as source, tarfile.open(kept, "w") as target:
        for member in source:
            if member.isfile():
                target.addfile(member, source.extractfile(member))
    kept.replace(tar)


@pytest.mark.fault("T17", "a failing policy, drawn as failed, tried again")
def test_a_failed_cell_stops_nothing_is_shown_as_failed_and_is_tried_again(tmp_path):
    project = copy_project(tmp_path / "project")
    marker = tmp_path / "marker"
    marker.write_text("")
    (project / "scripts" / "e98_fragile.py").write_text(FRAGILE.format(marker=str(marker)))
    table = {
        "caption": "What a sum takes",
        "rows": "policy",
        "case": "sum",
        "columns": {"steady_eager_ms": {"formula": "median", "of": "steady_eager"}},
    }

    def only_fragile(values):
        values["experiments"] = {
            "e98_fragile": {
                "title": "Fragile",
                "policies": {"broken": ["none"], "whole": ["none"]},
                "exhibit": {"tables": {"main": table}},
            }
        }

    edit_config(project, only_fragile)
    first = snakemake(project)
    assert first.returncode != 0
    assert "planted failure" in told(first)
    folder = project / "results" / RUN / "e98_fragile"
    failed = evidence.verify(folder / "broken/none/1", RUN, Cell("e98_fragile", "broken", "none", 1))
    assert failed.failed
    assert "planted failure" in (folder / "broken/none/1/run.log").read_text()
    assert not (folder / "broken/none/1/evidence.csv").exists()
    assert record_of(project, "whole", "none", "e98_fragile").determinate
    drawn = (project / "figures" / RUN / "e98_fragile.md").read_text()
    assert "1 failed" in drawn
    assert re.search(r"^\| broken +\| +failed \|$", drawn, re.MULTILINE)

    marker.unlink()
    second = snakemake(project)
    assert second.returncode == 0, told(second)
    again = record_of(project, "broken", "none", "e98_fragile")
    assert again.provenance["attempt"] == 2
    assert record_of(project, "whole", "none", "e98_fragile").provenance["attempt"] == 1
    assert "0 failed" in (project / "figures" / RUN / "e98_fragile.md").read_text()
    events = attempts.read(project / "results" / RUN)
    assert [(each["event"], each["attempt"]) for each in events if "broken" in each["cell"]] == [
        ("started", 1),
        ("failed", 1),
        ("started", 2),
        ("measured", 2),
    ]
    assert events[-1]["event"] == "measured"
    failed_event = next(each for each in events if each["event"] == "failed")
    kept = project / "results" / RUN / "attempts" / f"{failed_event['log']}.log"
    assert "planted failure" in kept.read_text()
    record = folder / "broken/none/1/provenance.json"
    assert evidence.sha256_of(record) in [each.get("provenance") for each in events]
    assert "Nothing to be done" in told(snakemake(project, "-n"))


def test_by_hand_a_warm_cell_makes_its_cold_one_first_and_says_what_holds(measured):
    unlisted = measured / "scripts" / "e97_unlisted.py"
    shutil.copyfile(measured / "scripts" / f"{E6}.py", unlisted)
    answer = script(measured, "e97_unlisted", "--policy", "static", "--cache", "warm", "--scale", "quick")
    unlisted.unlink()
    assert answer.returncode == 2
    assert "scripts/e97_unlisted.py has no entry under experiments" in answer.stderr
    answer = script(measured, E6, "--policy", "static", "--cache", "warm", "--scale", "quick")
    assert answer.returncode == 0, told(answer)
    lines = answer.stdout.strip().splitlines()
    assert f"-- first its cold cell, {E6}/static/cold/1" in lines
    assert lines[-1].startswith(f"{E6}/static/warm/1: model: STABLE fails: idx: size mismatch at index 1")
    assert any(line.startswith("cache warm-proven") for line in lines)


def test_quick_and_full_never_touch_each_other():
    runs = {config.load(overrides={"scale": scale}).run for scale in ("quick", "full")}
    assert runs == {"current", "current-quick"}
