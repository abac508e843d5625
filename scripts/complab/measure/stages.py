"""What did the first call spend its time on? Seconds by stage of the compiler, each second in one stage.

A release that reports no spans has no stages; a stage that the call never entered took no time.
"""

from collections.abc import Iterable

from complab.measure.dynamo import Span

# Innermost wins: a span that is not named here belongs to the stage around it.
STAGE_OF = {
    "entire_frame_compile": "stage_dynamo",
    "backend_compile": "stage_aot_autograd",
    "inductor_compile": "stage_inductor",
    "code_gen": "stage_codegen",
    "AOTAutogradCache.inductor_load": "stage_load",
    "PyCodeCache.load_by_key_path": "stage_load",
    "compile_file": "stage_compilers",
    "async_compile.precompile": "stage_compilers",
    "async_compile.wait": "stage_compilers",
    "CachingAutotuner.slow_precompile_config": "stage_compilers",
    "CachingAutotuner.benchmark_all_configs": "stage_autotune",
    "CachingAutotuner.combo_sequential_autotune": "stage_autotune",
    "CachingAutotuner.coordinate_descent_tuning": "stage_autotune",
    "benchmark_fused_nodes": "stage_autotune",
    "pad_mm_benchmark": "stage_autotune",
}
STAGES = tuple(dict.fromkeys(STAGE_OF.values()))
REST = "stage_rest"


def exclusive(spans: Iterable[Span]) -> dict[str, float]:
    """Seconds in each stage less those in the stages inside it; the sum is that of the outermost spans.

    ``spans`` are of one thread, so two of them are apart or one holds the other.
    """
    seconds = dict.fromkeys(STAGES, 0.0)
    around: list[Span] = []
    # Of two with the same ends, the one that was told later is the outer one.
    staged = [span for span in reversed(list(spans)) if span.name in STAGE_OF]
    for span in sorted(staged, key=lambda span: (span.start, -span.end)):
        while around and around[-1].end <= span.start:
            around.pop()
        seconds[STAGE_OF[span.name]] += span.seconds
        if around:
            seconds[STAGE_OF[around[-1].name]] -= span.seconds
        around.append(span)
    return seconds


def record(bench, case: str, first_call: float, spans: list[Span] | None) -> None:
    """Record the stages of a first call of so many seconds, and what is left of it outside of all."""
    if spans is None:
        bench.say(f"{case}: stages not reported by this release")
        return
    found = exclusive(spans)
    entered = {STAGE_OF.get(span.name) for span in spans}
    for stage, seconds in found.items():
        bench.record(stage, seconds, "s", case=case, detail="" if stage in entered else "not entered")
    bench.record(REST, first_call - sum(found.values()), "s", case=case)
