"""Is a loop over varying shapes timed as a whole, each call's fate told and nothing claimed to agree?"""

import pytest
import torch

import e10_ledger_table as e10
from complab import torchlog
from complab.evidence import Row
from complab.measure import capture, ledger
from complab.measure.bench import Bench


@pytest.fixture
def bench():
    """Gives a bench of a policy; torch's log goes where the bench looks for it."""
    torch.compiler.reset()

    def of(policy, cache="cold"):
        settings = {
            "device": "cpu",
            "seed": 1,
            "steady_rounds": 2,
            "steady_caches": ["cold"],
            "settings": {"size": 8},
            "tolerance": {"rtol": 1e-4, "atol": 1e-4},
        }
        return Bench({"cell": {"policy": policy, "cache": cache}, "config": settings}, log)

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


def counted(function):
    """The function, and the list of the inputs' lengths it was called with outside of Dynamo."""
    seen = []

    def counting(x):
        seen.append(len(x))
        return function(x)

    return counting, seen


def test_a_loop_starts_torchs_libraries_outside_of_its_time(bench):
    eager, seen = counted(lambda x: x * 2)
    bench("shape-varying").loop("region", eager, lambda x: x * 2, [(torch.ones(3),), (torch.ones(4),)])
    assert seen == [3]


def fails_at(length):
    def function(x):
        if len(x) == length:
            raise ValueError("too long")
        return x * 2

    return function


def value(told, metric):
    return [(row["call"], row["value"], row["detail"]) for row in told.rows if row["metric"] == metric]


@pytest.mark.parametrize("way", ["loop", "serve"])
def test_a_compiled_call_that_raises_ends_its_stream_and_is_told_with_what_was_measured(bench, way):
    told = bench("shape-varying")
    stream = [(torch.ones(length),) for length in (3, 4, 5)]
    getattr(told, way)("region", lambda x: x * 2, fails_at(4), stream)
    assert value(told, "compiled_runs") == [(1, 0, "ValueError: too long")]
    assert [call for call, *_ in value(told, "sequence_length")] == [0, 1]
    assert told._log.getvalue().endswith(torchlog.end("region", 1))
    assert "loop_time" not in metrics(told)
    told.steady({"region": (lambda: None, lambda: None)})
    assert "steady_eager" not in metrics(told)
    rows = [Row("e10_ledger_table", "shape-varying", "cold", 1, **row) for row in told.rows]
    tolerance = {"rtol": 1e-4, "atol": 1e-4, "reason": "sums in another order"}
    region = ledger.fill(rows, tolerance, 8)["regions"]["region"]
    assert region["sentence"] == "RUNS fails: the compiled form raises where eager runs: ValueError: too long"


@pytest.mark.parametrize("length", [3, 4])
@pytest.mark.parametrize("compiled", [None, lambda x: x * 2])
def test_an_eager_call_that_raises_is_no_compiler_bug(bench, length, compiled):
    told = bench("default")
    told.serve("region", fails_at(length), compiled, [(torch.ones(3),), (torch.ones(4),)])
    assert value(told, "eager_runs") == [(length - 3, 0, "ValueError: too long")]


def test_a_frame_whose_compilation_raises_in_a_stream_is_not_called_skipped(bench):
    def backend(graph, inputs):
        raise ValueError("this backend compiles nothing")

    def double(x):
        return x * 2

    told = bench("default")
    with told.capturing("region"):
        told.serve("region", double, torch.compile(double, backend=backend), [(torch.ones(3),)])
    ((_, runs, detail),) = value(told, "compiled_runs")
    assert runs == 0 and detail.startswith("BackendCompilerFailed: ")
    assert [number for _, number, _ in value(told, "frames_skipped")] in ([], [0])


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


def test_a_cache_state_that_is_not_asked_about_has_no_steady_state_and_says_so(bench, capfd):
    calls = []
    told = bench("pointwise", "warm")
    told.steady({"region": (lambda: calls.append("eager"), lambda: calls.append("compiled"))})
    assert (told.rows, calls) == ([], [])
    assert capfd.readouterr().out == "no steady state is timed in a warm process\n"
    asked = bench("pointwise", "cold")
    asked.steady({"region": (lambda: None, lambda: None)})
    assert metrics(asked).count("steady_compiled") == 2
