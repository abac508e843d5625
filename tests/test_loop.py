"""Is a loop over varying shapes timed as a whole, each call's fate told and nothing claimed to agree?"""

import pytest
import torch

import e10_ledger_table as e10
from complab.measure import capture
from complab.measure.bench import Bench


@pytest.fixture
def bench():
    """Gives a bench of a policy; torch's log goes where the bench looks for it."""
    torch.compiler.reset()

    def of(policy):
        settings = {
            "device": "cpu",
            "seed": 1,
            "steady_rounds": 2,
            "settings": {"size": 8},
            "tolerance": {"rtol": 1e-4, "atol": 1e-4},
        }
        return Bench({"cell": {"policy": policy, "cache": "cold"}, "config": settings}, log)

    with capture.capture_logs(graph_breaks=True, recompiles=True) as log, torch.no_grad():
        yield of


def metrics(bench):
    return [row["metric"] for row in bench.rows]


def test_the_seconds_of_a_loop_are_recorded_once_and_each_fate_by_call(bench):
    def double(x):
        return x * 2

    told = bench("shape-varying")
    compiled = torch.compile(double, backend="eager")
    with told.capturing("region"):
        told.loop("region", double, compiled, [(torch.ones(length),) for length in (3, 4, 5, 3)])
    fates = [row["metric"] for row in told.rows if row["unit"] == "calls"]
    assert fates == ["new_variants", "new_variants", "reuses", "reuses"]
    assert metrics(told).count("loop_time") == metrics(told).count("recompiles") == 1
    (loop,) = [row for row in told.rows if row["metric"] == "loop_time"]
    assert loop["value"] > 0 and loop["unit"] == "s"
    assert not {"within_tolerance", "max_abs_diff", "steady_eager", "peak_memory_growth"} & set(metrics(told))


def test_the_printing_region_breaks_at_its_print_and_is_silent(bench, capfd, monkeypatch):
    monkeypatch.setattr(
        e10.policies, "compile_with", lambda policy, subject: torch.compile(subject, backend="eager")
    )
    told = bench("print")
    e10.timed(told)
    assert "halfway" not in capfd.readouterr().out
    (breaks,) = [row for row in told.rows if row["metric"] == "log_breaks"]
    (graphs,) = [row for row in told.rows if row["metric"] == "graphs_captured"]
    assert breaks["value"] == 1 and "e10_ledger_table.py" in breaks["detail"] and graphs["value"] == 2
    assert {"first_call", "steady_eager", "steady_compiled", "steady_control"} <= set(metrics(told))
