"""Wherever the project lies, and whatever git knows of it: the same evidence, or a line that says why not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stub
from complab import evidence
from complab.errors import EXIT_ENVIRONMENT, EXIT_USAGE
from complab.report.classes import EXIT, MISSING, TAMPERED
from stub import PLAIN, RUN
from trouble import bound_by_permissions, read_only

ONLY_PLAIN = {"plain": ["none"]}


def complab(project: stub.Stub, *words: str, **options) -> subprocess.CompletedProcess:
    """Run the project's own command that reads evidence."""
    argv = [sys.executable, "-m", "complab.cli", *words]
    environment = project.environment(PYTHONPATH=str(project.project / "scripts"))
    return subprocess.run(
        argv, cwd=project.project, env=environment, capture_output=True, text=True, check=False, **options
    )


def told(answer: subprocess.CompletedProcess) -> str:
    return answer.stdout + answer.stderr


# Paths.

PLACES = {
    "with spaces and quotes": 'it\'s a "place" with  spaces',
    "beyond ASCII": "größe ☃ プロジェクト",
    "very long": "/".join(["long-" + "x" * 120] * 6),
}


@pytest.mark.fault("T14", "a project path with spaces, quotes, beyond ASCII, very long; moved after the run")
@pytest.mark.parametrize("place", PLACES)
def test_a_project_measures_anywhere_and_its_evidence_holds_after_a_move(tmp_path, place):
    project = stub.make(tmp_path, ONLY_PLAIN, project=PLACES[place])
    status, said = project.snakemake("all")
    assert status == 0, said
    assert str(tmp_path) not in (project.folder(PLAIN) / evidence.PROVENANCE).read_text().replace(
        str(project.python), ""
    )
    moved = stub.Stub(tmp_path / "moved", project.control)
    project.project.rename(moved.project)
    audited = complab(moved, "audit", "--run", RUN)
    assert audited.returncode == 0, told(audited)
    status, said = moved.snakemake("-n", "all")
    assert status == 0, said
    assert "Nothing to be done" in said


@pytest.mark.fault("T14", "a project behind a symbolic link")
def test_a_project_behind_a_link_is_the_same_project(tmp_path):
    project = stub.make(tmp_path, ONLY_PLAIN)
    (tmp_path / "link").symlink_to(project.project)
    status, said = project.snakemake("evidence", folder=tmp_path / "link")
    assert status == 0, said
    status, said = project.snakemake("-n", "evidence")
    assert "Nothing to be done" in said


@pytest.mark.fault("T14", "a project path with a space: where the compiler works")
def test_what_the_compiler_sees_lies_in_a_short_folder_without_spaces(tmp_path):
    project = stub.make(tmp_path, ONLY_PLAIN, project="with space")
    status, _, complaints = project.script("--policy", "plain", "--out", project.folder(PLAIN))
    assert status == 0, complaints
    variables = project.record(PLAIN)["variables"]
    for name in ("TMPDIR", "HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert variables[name].startswith("$TMP/")


# Checkouts.


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A stub project that is a git repository with two commits."""
    project = stub.make(tmp_path, ONLY_PLAIN)
    git(project.project, "init", "--quiet")
    (project.project / ".gitignore").write_text("__pycache__/\n/results/\n/figures/\n.snakemake/\n")
    git(project.project, "add", ".")
    git(project.project, "commit", "--quiet", "-m", "One")
    git(project.project, "commit", "--quiet", "--allow-empty", "-m", "Two")
    return project


def code_of(project: stub.Stub, out: Path, variables: dict | None = None) -> dict:
    """What a cell that is measured now records about the code."""
    status, _, complaints = project.script("--policy", "plain", "--out", out, variables=variables)
    assert status == 0, complaints
    return evidence.read_provenance(out)["code"]


@pytest.mark.fault("T15", "a read-only checkout")
def test_a_read_only_checkout_says_to_clone_it_and_its_clone_measures(checkout, tmp_path):
    with read_only(checkout.project):
        for words in (["evidence"], ["-n", "evidence"]):
            status, said = checkout.snakemake(*words, preexec_fn=bound_by_permissions)
            assert status == EXIT_ENVIRONMENT
            refusal = f"complab: {checkout.project}: cannot be written; `git clone` it into a folder of your"
            assert said.rstrip().splitlines()[-1].startswith(refusal)
        git(tmp_path, "clone", "--quiet", str(checkout.project), "clone")
    clone = stub.Stub(tmp_path / "clone", checkout.control)
    shutil.copytree(checkout.project / "figures", clone.project / "figures", dirs_exist_ok=True)
    status, said = clone.snakemake("evidence")
    assert status == 0, said
    code = clone.record(PLAIN)["code"]
    assert (code["commit"], code["dirty"]) == (git(checkout.project, "rev-parse", "HEAD"), False)


@pytest.mark.fault("T15", "evidence in a read-only checkout")
def test_evidence_in_a_read_only_checkout_can_be_verified(checkout):
    code_of(checkout, checkout.folder(PLAIN))
    with read_only(checkout.project):
        audited = complab(checkout, "audit", "--run", RUN, preexec_fn=bound_by_permissions)
    assert audited.returncode == EXIT[MISSING]
    assert "1 cell, 5 rows, 1 attempt, 1 ledger verified" in audited.stdout
    assert "missing: figures/stub: no exhibits of this run; draw them" in audited.stdout


@pytest.mark.fault("T15", "Snakemake in another folder than the checkout")
def test_another_working_folder_is_refused_with_the_remedy(checkout, tmp_path):
    (tmp_path / "work").mkdir()
    words = ("-d", str(tmp_path / "work"), "-s", str(checkout.project / "Snakefile"))
    status, said = checkout.snakemake("evidence", *words)
    assert status == EXIT_USAGE
    assert f"start Snakemake without -d in {checkout.project}" in said
    assert list((tmp_path / "work").rglob("provenance.json")) == []


@pytest.mark.fault("T15", "a dirty checkout")
def test_a_dirty_checkout_is_flagged_with_the_hash_of_its_changes(checkout, tmp_path):
    assert code_of(checkout, tmp_path / "clean")["dirty"] is False
    hashes = set()
    config = checkout.project / "config.yaml"
    for number, text in enumerate(("# One.\n", "# Größe, „zwei“.\n")):
        config.write_text(config.read_text(encoding="utf-8") + text, encoding="utf-8")
        code = code_of(checkout, tmp_path / str(number))
        assert code["dirty"] is True
        hashes.add(code["changes"])
    assert len(hashes) == 2


@pytest.mark.fault("T13", "a dirty checkout beyond ASCII in a locale without UTF-8")
@pytest.mark.fault("T15", "a dirty checkout whose changes are no UTF-8")
@pytest.mark.parametrize("change", ["größe", "gr\udcf6\udcdfe"], ids=["UTF-8", "Latin-1"])
def test_a_change_in_whatever_letters_is_hashed_in_every_locale(checkout, tmp_path, change):
    path = checkout.project / "envs" / "cpu.in"
    path.write_bytes(path.read_bytes() + f"# {change}\n".encode("utf-8", "surrogateescape"))
    hashes = set()
    for name, variables in {
        "posix": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        "utf-8": {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"},
    }.items():
        code = code_of(checkout, tmp_path / name, variables)
        assert code["dirty"] is True
        hashes.add(code["changes"])
    assert len(hashes) == 1


@pytest.mark.fault("T15", "a shallow clone")
def test_a_shallow_clone_records_the_same_commit(checkout, tmp_path):
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{checkout.project}", "shallow")
    clone = stub.Stub(tmp_path / "shallow", checkout.control)
    assert git(clone.project, "rev-list", "--count", "HEAD") == "1"
    code = code_of(clone, tmp_path / "cell")
    assert (code["commit"], code["dirty"]) == (git(checkout.project, "rev-parse", "HEAD"), False)


@pytest.mark.fault("T15", "no git, and no repository")
@pytest.mark.parametrize("without", ["git", "repository"])
def test_without_git_no_commit_is_recorded_and_the_run_cannot_be_bundled(tmp_path, without):
    project = stub.make(tmp_path, ONLY_PLAIN)
    variables = {"GIT_CEILING_DIRECTORIES": str(tmp_path)}
    if without == "git":
        git(project.project, "init", "--quiet")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "git").write_text("#!/bin/sh\nexit 127\n")
        (tmp_path / "bin" / "git").chmod(0o755)
        variables["PATH"] = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    code = code_of(project, project.folder(PLAIN), variables)
    assert (code["commit"], code["dirty"]) == (None, None)
    refused = complab(project, "bundle", "--run", RUN)
    assert refused.returncode == EXIT_USAGE
    assert "measured outside a git repository" in refused.stderr
    assert not (project.project / "figures" / RUN / "bundle.zip").exists()


# Tampering, as the rules meet it.


@pytest.mark.fault("T7", "a value in evidence.csv, times restored, and a legitimate rerun")
def test_an_altered_number_reaches_no_exhibit_and_a_rerun_of_the_cell_restores_it(tmp_path):
    project = stub.make(tmp_path, ONLY_PLAIN)
    status, said = project.snakemake("all")
    assert status == 0, said
    path = project.folder(PLAIN) / evidence.EVIDENCE
    before, text = path.stat(), path.read_text(encoding="utf-8")
    path.write_text(text.replace("0.333", "0.444"), encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    figures = project.project / "figures" / RUN
    drawn = {file.name: file.read_bytes() for file in figures.iterdir()}
    status, said = project.snakemake("exhibits")
    assert status != 0
    assert f"{PLAIN}/evidence.csv: was altered since it was measured" in said
    assert {file.name: file.read_bytes() for file in figures.iterdir()} == drawn
    audited = complab(project, "audit", "--run", RUN)
    assert audited.returncode == EXIT[TAMPERED]
    assert f"tampered: results/{RUN}/{PLAIN}/evidence.csv" in audited.stdout

    status, said = project.snakemake("all", "-R", f"results/{RUN}/{PLAIN.path}/provenance.json")
    assert status == 0, said
    assert path.read_text(encoding="utf-8") == text
    audited = complab(project, "audit", "--run", RUN)
    assert audited.returncode == 0, told(audited)
