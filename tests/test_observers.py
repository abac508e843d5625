"""An instrument is held against a process that has none, and only what it changes is told."""

import copy
import json
import os
import subprocess
import sys

import pytest
import yaml

from complab import config
from complab.errors import UsageProblem
from complab.measure import observers

E7 = "e7_observer_effect"


@pytest.fixture
def given():
    return yaml.safe_load(config.CONFIG_FILE.read_text(encoding="utf-8"))


def rows(observer, **values):
    return [
        {"case": observer, "call": None, "metric": metric, "value": float(value), "unit": "1", "detail": ""}
        for metric, value in values.items()
    ]


def verdicts(*told):
    found = observers.differences([row for some in told for row in some])
    return {(row["case"], row["metric"]): (row["value"], row["detail"]) for row in found}


CONTROL = rows("control", frames_compiled=1, graphs_captured=1, fxgraph_hits=1, fxgraph_misses=0)


def test_an_observer_that_counts_the_same_changes_neither_whatever_its_time():
    alike = rows(
        "guards", frames_compiled=1, graphs_captured=1, fxgraph_hits=1, fxgraph_misses=0, first_call=9
    )
    assert verdicts(CONTROL, alike) == {
        ("guards", "changes_counts"): (0, ""),
        ("guards", "changes_hits"): (0, ""),
    }


def test_what_an_observer_changes_is_named_with_both_values():
    missing = rows("debug", frames_compiled=1, graphs_captured=1, fxgraph_hits=0, fxgraph_misses=1)
    told = verdicts(CONTROL, missing)
    assert told["debug", "changes_counts"] == (0, "")
    assert told["debug", "changes_hits"] == (
        1,
        "fxgraph_hits 1 without, 0 with; fxgraph_misses 0 without, 1 with",
    )


def test_a_count_that_only_one_of_them_tells_is_a_difference_and_no_zero():
    told = verdicts(CONTROL, rows("explain", frames_compiled=1, fxgraph_hits=1, fxgraph_misses=0))
    assert told["explain", "changes_counts"] == (1, "graphs_captured 1 without, not told with")


def test_the_control_is_held_against_nothing_and_without_observers_there_is_nothing():
    assert verdicts(CONTROL) == {}
    assert observers.differences([]) == []


def test_what_an_instrument_writes_goes_to_its_own_folder(tmp_path):
    names = config.load().experiment(E7)["observers"]
    told = {name: observers.variables(name, tmp_path / name) for name in names}
    assert told["control"] == {}
    written = [value for name in names for value in told[name].values() if value.startswith("/")]
    assert len(written) == 2 and all(value.startswith(str(tmp_path)) for value in written)
    assert len({json.dumps(variables) for variables in told.values() if variables}) == 5


def test_only_the_cold_cell_of_the_observers_runs_them():
    settings = {"observers": ["control", "guards"]}
    assert observers.wanted("observers", "cold", settings) == ["control", "guards"]
    assert (
        observers.wanted("clean", "cold", settings) == observers.wanted("observers", "none", settings) == []
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry["policies"].pop("observers"),
        lambda entry: entry.pop("observers"),
        lambda entry: entry["observers"].remove("control"),
    ],
    ids=("no policy", "no observers", "no control"),
)
def test_observers_without_policy_or_control_are_refused(given, change):
    changed = copy.deepcopy(given)
    change(changed["experiments"][E7])
    with pytest.raises(UsageProblem, match=f"{E7}.observers: .*control"):
        config.resolve(changed)


PROGRAM = """
import sys
import torch
from complab.measure import capture, dynamo
with capture.redirected_logs() as log:
    with torch.no_grad():
        torch.compile(lambda x: torch.sin(x), backend="eager")(torch.ones(2))
print(len(log.getvalue()), dynamo.graphs_captured(), file=sys.stdout)
"""


@pytest.mark.parametrize("observer", ["control", "guards"])
def test_an_observers_log_is_that_of_its_environment(observer, tmp_path):
    environment = {"PYTHONPATH": str(config.PROJECT / "scripts"), "PATH": os.environ["PATH"]}
    environment |= observers.variables(observer, tmp_path)
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    characters, graphs = map(int, done.stdout.split())
    assert (graphs, done.stderr) == (1, "")
    assert (characters > 0) == (observer == "guards")
