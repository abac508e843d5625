"""The experiments about breaks and guards ask what they say they ask: one thing differs, and nothing else."""

import contextlib
import inspect

import pytest
import torch

import e4_break_location
import e5_guards
from complab.measure import capture, workload
from complab.measure.bench import Bench

SIZES = {"vocabulary": 32, "dim": 16, "heads": 2, "blocks": 4, "max_length": 16}
SETTINGS = {
    "device": "cpu",
    "seed": 1,
    "workload": SIZES,
    "tolerance": {"rtol": 1e-4, "atol": 1e-4},
    "settings": {"batch": 2, "length": 8, "lengths": [8, 8, 12]},
}


@pytest.fixture(autouse=True)
def clean_dynamo():
    """No test sees what another has compiled."""
    capture.hard_reset()
    yield
    capture.hard_reset()


@contextlib.contextmanager
def measuring(policy: str):
    """A bench for one cell of an experiment."""
    with capture.capture_logs(graph_breaks=True, recompiles=True) as log:
        yield Bench({"cell": {"policy": policy, "cache": "cold"}, "config": SETTINGS}, log)


def value(bench: Bench, metric: str, case: str = "model") -> float | None:
    found = [row["value"] for row in bench.rows if (row["metric"], row["case"]) == (metric, case)]
    return found[-1] if found else None


def detail(bench: Bench, metric: str, case: str = "model") -> str:
    return next(row["detail"] for row in bench.rows if (row["metric"], row["case"]) == (metric, case))


# e4.


def captured(policy: str) -> Bench:
    """One call of the policy's model under the capture-only backend, and both probes."""
    with measuring(policy) as bench, torch.no_grad():
        ((case, (model, arguments)),) = e4_break_location.subjects(bench).items()
        bench.attempt(case, model, torch.compile(model, backend="eager"), arguments)
        bench.explain(case, model, arguments)
        bench.fullgraph(case, model, arguments, {})
    return bench


@pytest.mark.parametrize(
    ("policy", "log", "explain_graphs", "explain_breaks", "skipped", "accepts"),
    [("none", 0, 1, 0, 0, 1), ("before-blocks", 1, 2, 1, 0, 0), ("mid-stack", 1, 1, 0, 1, 0)],
)
def test_in_a_loop_explain_does_not_see_the_break_that_the_log_and_fullgraph_see(
    policy, log, explain_graphs, explain_breaks, skipped, accepts
):
    bench = captured(policy)
    assert value(bench, "within_tolerance") == 1
    assert value(bench, "log_breaks") == log
    assert value(bench, "explain_graphs") == explain_graphs
    assert value(bench, "explain_breaks") == explain_breaks
    assert value(bench, "frames_skipped") == skipped
    assert value(bench, "fullgraph_accepts") == accepts


@pytest.mark.parametrize("policy", ["before-blocks", "mid-stack"])
def test_the_log_names_the_branch(policy):
    model = e4_break_location.MODELS[policy]
    lines, start = inspect.getsourcelines(model.forward)
    at = next(index for index, line in enumerate(lines) if ".item() >" in line)
    place = detail(captured(policy), "log_breaks").split(" | ")[0]
    assert place == f"{e4_break_location.__file__}:{start + at}: {lines[at].strip()}"


def test_every_policy_computes_the_same_and_its_branch_depends_on_the_data():
    outputs = []
    for policy, variant in e4_break_location.MODELS.items():
        with measuring(policy) as bench, torch.no_grad():
            model, tokens = workload.model_and_batch(bench, variant)
            outputs.append(model(tokens))
            model.tokens.weight.fill_(2 * e4_break_location.LARGEST)
            clamped = (model(tokens) != workload.TokenModel.forward(model, tokens)).any()
            assert bool(clamped) == (policy != "none")
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


# e5.


@pytest.fixture(scope="module")
def forensics():
    with measuring("forensics") as bench:
        e5_guards.timed(bench)
    return bench


KINDS = {
    "shape": "shape",
    "dtype": "dtype",
    "constant": "python-value",
    "requires_grad": "requires-grad",
    "grad_mode": "grad-mode",
    "strides": "stride",
    "attribute": "module-attribute",
    "global": "global-state",
}


@pytest.mark.parametrize("case", KINDS)
def test_one_change_fails_one_guard_of_its_kind(forensics, case):
    assert value(forensics, "static_recompiles", case) == 1
    assert detail(forensics, "assumption", case) == KINDS[case]
    assert detail(forensics, "static_recompiles", case)


@pytest.mark.parametrize("case", KINDS)
def test_whether_dynamic_removes_a_guard_is_what_the_second_call_did(forensics, case):
    assert value(forensics, "removed_by_dynamic", case) == (value(forensics, "dynamic_recompiles", case) == 0)
    # An attribute is left out: 2.6 makes an integer one symbolic, 2.13 does not.
    if case != "attribute":
        assert value(forensics, "removed_by_dynamic", case) == (case in ("shape", "constant"))


def test_every_answer_of_the_forensics_is_right(forensics):
    right = [row["value"] for row in forensics.rows if row["metric"] == "bitwise_equal"]
    assert right == [1] * 2 * len(KINDS)


def test_a_change_of_device_is_asked_about_where_there_are_two():
    assert set(e5_guards.changes("cpu")) == set(KINDS)


def test_what_a_change_touched_is_as_before_afterwards():
    for change in e5_guards.changes("cpu").values():
        with change.around_second():
            pass
        first, again = change.function(*change.first), change.function(*change.first)
        assert torch.equal(first, again)
    assert e5_guards.SCALE == 2
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("case", KINDS)
def test_the_two_calls_of_a_change_differ(case):
    change = e5_guards.changes("cpu")[case]
    before = change.function(*change.first)
    with change.around_second():
        after = change.function(*change.second)
        differs = {
            "shape": before.shape != after.shape,
            "dtype": before.dtype != after.dtype,
            "requires_grad": before.requires_grad != after.requires_grad,
            "grad_mode": not torch.is_grad_enabled(),
            "strides": change.first[0].stride() != change.second[0].stride() and before.shape == after.shape,
        }
        assert differs.get(case, before.shape == after.shape and not torch.equal(before, after))


def test_the_stream_logs_every_rejected_variant_and_the_changed_type(monkeypatch):
    monkeypatch.setattr(
        e5_guards.policies,
        "compile_with",
        lambda _, model: torch.compile(model, backend="eager", dynamic=False),
    )
    with measuring("static") as bench:
        e5_guards.timed(bench)
    assert value(bench, "log_recompiles") == 1
    assert "size mismatch at index 1. expected 8, actual 12" in detail(bench, "recompiles")
    assert "dtype mismatch. expected Long, actual Int" in detail(bench, "recompiles", "int32")
