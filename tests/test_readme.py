"""The README's commands work as written: the quick ones are run, the long ones are run dry."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from complab import config
from complab.config import PROJECT
from complab.mechanisms import VOCABULARY
from complab.report import classes
from project_copy import copy_project, edit_config

README = (PROJECT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (PROJECT / "workflow" / "subjects" / "TUTORIAL.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = FENCE.findall(README)
# Commands that run somebody's program for a minute.
PROGRAMS = ("complab diagnose", "complab watch")
TABLED = re.findall(r"^\|[^|`]+\| `([^`]+)` \|$", README, re.MULTILINE)
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()] + TABLED
MANUSCRIPT = next(text for kind, text in BLOCKS if kind == "markdown")
IN_TEXT = re.findall(r"`((?:make|snakemake|complab) [^`]+)`", README)


def told(answer: subprocess.CompletedProcess) -> str:
    return answer.stdout + answer.stderr


def commands(first: str) -> list[str]:
    """The README's commands that begin with a word, each once."""
    found = [command for command in [*COMMANDS, *IN_TEXT] if command.split()[0] == first]
    return list(dict.fromkeys(found))


def run(argv: list[str], folder: Path = PROJECT) -> subprocess.CompletedProcess:
    """Run a command with this environment's programs first on the path."""
    shell = f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; {shlex.join(argv)}"
    return subprocess.run(["bash", "-c", shell], cwd=folder, capture_output=True, text=True, check=False)


def test_the_two_commands_come_first():
    assert COMMANDS[:2] == ["make evidence SCALE=quick", "make test"]


def test_every_command_is_of_a_kind_that_is_tested_here():
    assert {command.split()[0] for command in COMMANDS} == {"make", "snakemake", "complab", "python"}


@pytest.mark.parametrize("command", commands("make"))
def test_make_commands_name_targets_that_exist(command):
    answer = run(["make", "--dry-run", *shlex.split(command)[1:]])
    assert answer.returncode == 0, told(answer)


@pytest.mark.parametrize("word", re.findall(r"`((?:figures|workflow|envs)/[\w./-]+)`", README))
def test_committed_paths_that_the_readme_names_exist(word):
    if not word.startswith("figures/current"):
        assert (PROJECT / word).exists()


@pytest.mark.parametrize("path", re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README))
def test_pictures_exist(path):
    assert (PROJECT / path).is_file()


def test_the_scales_that_the_readme_names_exist():
    told = set(re.findall(r"\b(?:SCALE|scale)=(\w+)", README)) | set(re.findall(r"--scale (\w+)", README))
    assert {"quick", "counts"} <= told <= set(yaml.safe_load((PROJECT / "config.yaml").read_text())["scales"])


# e99 is the recipe's, whose own test plans and measures it.
@pytest.mark.slow
@pytest.mark.parametrize("command", [item for item in commands("snakemake") if "e99" not in item])
def test_snakemake_commands_plan_something(command, tmp_path):
    project = copy_project(tmp_path / "project")
    words = shlex.split(command.replace("/path/to/bin/python", sys.executable))
    answer = run([words[0], "-n", *words[1:]], project)
    assert answer.returncode == 0, told(answer)
    assert "Job stats" in told(answer)


@pytest.mark.parametrize("command", [each for each in commands("complab") if not each.startswith(PROGRAMS)])
def test_complab_commands_say_in_one_line_what_they_found(command, tmp_path):
    project = copy_project(tmp_path / "project")
    if "torch-2.13-cpu" in command:
        shutil.copytree(PROJECT / "figures" / "torch-2.13-cpu", project / "figures" / "torch-2.13-cpu")
    (project / "chapter.md").write_text(MANUSCRIPT, encoding="utf-8")
    answer = subprocess.run(
        [sys.executable, "-m", "complab.cli", *shlex.split(command)[1:]],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project / "scripts")},
        capture_output=True,
        text=True,
        check=False,
    )
    if "--manuscript" in command:
        assert (answer.returncode, answer.stderr) == (0, "")
        assert answer.stdout.startswith(
            "chapter.md: 4 numbers held against run torch-2.13-cpu: 2 bound and right"
        )
    elif "unpack figures" in command:
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.startswith("results/torch-2.13-cpu: unpacked")
        unpacked = project / "results" / "torch-2.13-cpu"
        assert (unpacked / "attempts.jsonl").is_file()
        # Drawn from alone, so without them the command after it fails.
        there = {path.parent.name for path in unpacked.glob("subjects/*/ledger.json")}
        assert there == set(config.load()["subjects"])
    elif "torch-2.13-cpu" in command:
        # The reference may lag behind the code, and lack what is planned now; altered it never is.
        kinds = {code: kind for kind, code in classes.EXIT.items()}
        assert answer.stderr == ""
        assert kinds[answer.returncode] != classes.TAMPERED, answer.stdout
        assert "recomputed from rows" in answer.stdout
    else:
        # A clone has no run of its own yet, and its user is told so.
        assert answer.returncode == 2
        assert re.fullmatch(r"complab: .* has .*evidence.*; measure .*\n", answer.stderr)


def printed_after(text: str) -> dict[str, str]:
    """What a page shows as the answer to a command, by the command: the next block, which has no language."""
    return {
        command.strip(): answer
        for (kind, command), (none, answer) in pairwise(FENCE.findall(text))
        if (kind, none) == ("sh", "")
    }


def levels_and_mechanism(printed: str) -> list[tuple[str, str]]:
    """What of a printed diagnosis is no number of the machine."""
    return re.findall(r"^  ([+x?.] [A-Z]+(?: IT)?) |^mechanism: +(\S+):", printed, re.MULTILINE)


def without_times(told: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same without the verdict of the one level that rests on times; that it was judged stays."""
    judged = ("WORTH IT judged", "")
    told = [judged if re.fullmatch(r"[+x?] WORTH IT", level) else (level, word) for level, word in told]
    return [each for each in told if each != ("", "no-saving")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "answer"),
    [item for item in printed_after(TUTORIAL).items() if item[0].startswith("complab diagnose")],
)
def test_a_diagnosis_comes_out_as_the_tutorial_prints_it(command, answer):
    made = run(["env", "PYTHONPATH=scripts", "python", "-m", "complab.cli", *shlex.split(command)[1:]])
    told, printed = levels_and_mechanism(made.stdout), levels_and_mechanism(answer)
    assert len(printed) >= 5
    assert without_times(told) == without_times(printed)


def test_the_readme_and_the_tutorial_show_the_same_answer():
    both = printed_after(README).keys() & printed_after(TUTORIAL).keys()
    assert any(command.startswith("complab diagnose") for command in both)
    assert all(printed_after(README)[command] == printed_after(TUTORIAL)[command] for command in both)


def test_the_tutorial_lists_every_mechanism_with_its_example():
    lines = [f"| {level} | `{word}` | {told} | {example} |" for level, word, told, example in VOCABULARY]
    assert [line for line in TUTORIAL.splitlines() if re.match(r"\| [A-Z ]+ \| `", line)] == lines


@pytest.mark.slow
@pytest.mark.parametrize("command", commands("python"))
def test_the_command_by_hand_ends_with_the_line_the_readme_shows(command):
    answer = run(shlex.split(command))
    assert answer.returncode == 0, told(answer)
    shown = next(line for line in README.splitlines() if line.startswith("e1_opening_failure/static/cold/1:"))
    assert answer.stdout.strip().splitlines()[-1].startswith(shown.removesuffix(" ..."))


@pytest.mark.slow
def test_the_recipes_two_files_give_rule_table_staleness_provenance_and_audit(tmp_path):
    project = copy_project(tmp_path / "project")
    recipe = next(text for kind, text in BLOCKS if kind == "python")
    entry = yaml.safe_load(next(text for kind, text in BLOCKS if kind == "yaml"))
    name = next(iter(entry))
    script = project / "scripts" / f"{name}.py"
    script.write_text(recipe)
    entry[name]["replicates"] = 1
    edit_config(project, lambda values: values["experiments"].update(entry))

    made = run(["snakemake", "--cores", "1", name.split("_")[0]], project)
    assert made.returncode == 0, told(made)
    for cache in ("cold", "warm"):
        record = json.loads(
            (project / f"results/current/{name}/default/{cache}/1/provenance.json").read_text()
        )
        assert record["cache"]["verdict"] == f"{cache}-proven", record["cache"]["reasons"]
        assert record["code"]["modules"][f"{name}.py"]
    table = (project / f"figures/current/{name}.md").read_text()
    assert re.search(r"^\| scale +\|", table, re.MULTILINE)
    assert json.loads((project / f"figures/current/{name}.lineage.json").read_text())

    audit = [
        "env",
        "PYTHONPATH=scripts",
        "python",
        "-m",
        "complab.cli",
        "audit",
        f"figures/current/{name}.csv",
    ]
    audited = run(audit, project)
    # Nothing else is planned to be drawn with it, so there is no manifest yet.
    assert audited.returncode == classes.EXIT[classes.UNPROVEN], told(audited)
    assert "unproven: figures/current/manifest.json" in told(audited)
    evidence = project / f"results/current/{name}/default/cold/1/evidence.csv"
    evidence.write_text(evidence.read_text().replace("first_call,", "first_call,1"))
    altered = run(audit, project)
    assert altered.returncode == classes.EXIT[classes.TAMPERED]
    assert f"{name}/default/cold/1/evidence.csv" in told(altered)

    script.write_text(recipe.replace("torch.sin(x) * 2", "torch.sin(x) * 3"))
    plan = run(["snakemake", "-n", "--cores", "1", name.split("_")[0]], project)
    assert plan.returncode == 0, told(plan)
    assert re.search(rf"^{name} +2$", told(plan), re.MULTILINE)
    assert f"{name}.py" in told(plan)
