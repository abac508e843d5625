"""Does every second of the first call lie in exactly one stage? On made-up spans and on real ones."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from complab.config import PROJECT
from complab.measure import dynamo, isolation, stages
from complab.measure.dynamo import Span

SECOND = 1_000_000_000


def span(name, start, end):
    return Span(name, round(start * SECOND), round(end * SECOND))


def recorded_rows(first_call, spans):
    rows = {}

    def record(metric, value, unit, *, case, detail=""):
        rows[metric] = (value, unit, detail)

    stages.record(SimpleNamespace(record=record, say=lambda text: None), "region", first_call, spans)
    return rows


def test_a_stage_does_not_hold_the_seconds_of_those_inside_it():
    # As torch reports them: in the order in which they end.
    told = [
        span("compile_file", 4, 7),
        span("PyCodeCache.load_by_key_path", 3.5, 7.5),
        span("code_gen", 3, 8),
        span("inductor_compile", 2, 8.5),
        span("create_aot_dispatcher_function", 1.5, 9),
        span("backend_compile", 1, 9.5),
        span("build_guards", 9.6, 9.8),
        span("entire_frame_compile", 0, 10),
    ]
    found = stages.exclusive(told)
    expected = {
        "stage_dynamo": 1.5,
        "stage_aot_autograd": 2,
        "stage_inductor": 1.5,
        "stage_codegen": 1,
        "stage_load": 1,
        "stage_compilers": 3,
        "stage_autotune": 0,
    }
    assert found == pytest.approx(expected) and sum(found.values()) == pytest.approx(10)


def test_several_graphs_add_up_and_spans_side_by_side_are_apart():
    graphs = [
        span("backend_compile", 1, 2),
        span("entire_frame_compile", 0, 3),
        span("backend_compile", 3, 5),
        span("entire_frame_compile", 3, 6),
    ]
    found = stages.exclusive(graphs)
    assert found["stage_dynamo"] == pytest.approx(3) and found["stage_aot_autograd"] == pytest.approx(3)


def test_of_two_spans_with_the_same_ends_the_one_that_ends_last_is_around_the_other():
    found = stages.exclusive([span("backend_compile", 0, 1), span("entire_frame_compile", 0, 1)])
    assert found["stage_aot_autograd"] == 1 and found["stage_dynamo"] == 0


def test_autotuning_at_run_time_counts_outside_of_any_frame():
    told = [span("entire_frame_compile", 0, 1), span("CachingAutotuner.benchmark_all_configs", 2, 4)]
    assert stages.exclusive(told)["stage_autotune"] == 2


@pytest.mark.parametrize("name", ["async_compile.precompile", "async_compile.wait"])
def test_a_kernel_that_is_not_generated_in_the_call_is_loaded_and_not_compiled(name):
    ready = [span(name, 2, 5), span("AOTAutogradCache.inductor_load", 1, 6), span("backend_compile", 0, 7)]
    found = stages.exclusive(ready)
    assert found["stage_load"] == pytest.approx(5) and found["stage_compilers"] == 0
    rows = recorded_rows(8.0, ready)
    assert rows["stage_compilers"] == (0, "s", "not entered")
    new = [span(name, 12, 14), span("PyCodeCache.load_by_key_path", 11, 15), span("code_gen", 10, 16)]
    found = stages.exclusive([*ready, *new])
    assert found["stage_compilers"] == pytest.approx(2) and found["stage_load"] == pytest.approx(7)
    assert recorded_rows(17.0, [*ready, *new])["stage_compilers"][2] == ""


def test_a_compiler_that_runs_while_ready_code_is_loaded_is_told():
    found = stages.exclusive([span("compile_file", 1, 2), span("PyCodeCache.load_by_key_path", 0, 4)])
    assert found["stage_compilers"] == 1 and found["stage_load"] == 3


def test_stages_and_the_rest_add_up_to_the_first_call():
    rows = recorded_rows(12.0, [span("backend_compile", 1, 9), span("entire_frame_compile", 0, 10)])
    assert sum(value for value, _, _ in rows.values()) == pytest.approx(12)
    assert rows["stage_rest"][0] == pytest.approx(2)
    assert rows["stage_codegen"] == (0, "s", "not entered") and rows["stage_dynamo"][2] == ""
    assert {unit for _, unit, _ in rows.values()} == {"s"}


def test_a_release_without_spans_records_no_stage():
    assert recorded_rows(12.0, None) == {}


def test_a_release_without_a_span_log_says_so(monkeypatch):
    monkeypatch.delattr(dynamo._utils, "get_chromium_event_logger")
    assert dynamo.capabilities()["compile_spans"] is False
    with dynamo.compile_spans() as spans:
        assert spans is None


def test_spans_of_a_compilation_lie_inside_the_call_and_only_there():
    torch.compiler.reset()
    compiled = torch.compile(lambda x: x * 3 + 1, backend="eager")
    with dynamo.compile_spans() as spans:
        compiled(torch.ones(3))
    names = [span.name for span in spans]
    assert names.count("entire_frame_compile") == names.count("backend_compile") == 1
    found = stages.exclusive(spans)
    assert found["stage_dynamo"] > 0 and found["stage_inductor"] == 0
    before = list(spans)
    compiled(torch.ones(3, 3))
    assert spans == before and "log_event_end" not in vars(dynamo._span_log())


def first_call(folder, asked):
    """What a process that compiles on the cache in the folder prints of ``stages`` and ``spawned``."""
    program = f"""
import sys
spawned = []
sys.addaudithook(lambda event, told: event == "subprocess.Popen" and spawned.append(list(map(str, told[1]))))
import torch
from complab.measure import dynamo, stages
with torch.no_grad(), dynamo.compile_spans() as spans:
    torch.compile(lambda x: torch.sin(x) * 2)(torch.ones(64, 64))
told = stages.exclusive(spans)
print({asked})
"""
    environment = {
        **os.environ,
        "PYTHONPATH": str(PROJECT / "scripts"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_COMPILE_THREADS": str(isolation.COMPILE_THREADS["cpu"]),
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_cold_compilation_enters_every_stage_that_a_cpu_has_and_a_warm_one_only_preprocesses(tmp_path):
    compiling = "any(word.endswith('.cpp') for words in spawned for word in words)"
    preprocessing = "any('-E' in words for words in spawned)"
    not_entered = "[stage for stage in told if told[stage] <= 0]"
    assert first_call(tmp_path, f"{not_entered}, {compiling}") == "['stage_autotune'] True"
    warm = first_call(
        tmp_path, f"told['stage_codegen'], {compiling}, told['stage_compilers'] > 0, {preprocessing}"
    )
    assert warm in ("0.0 False True True", "0.0 False False False")
