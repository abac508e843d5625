"""What did the first call spend its time on? Seconds by stage of the compiler, each second in one stage.

A release that reports no spans has no stages; a stage that the call never entered took no time.

A C++ compiler may run although every kernel is loaded from a cache: where headers are precompiled, each
process has one preprocessed, to see whether the precompiled one still fits. That is `stage_compilers`, as all
time in a compiler's process. Preparing a Triton kernel and waiting for one compile only what the call has
generated itself; outside of code generation they load, and count as `stage_load`.
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
    "async_compile.precompile": "stage_load",
    "async_compile.wait": "stage_load",
    "CachingAutotuner.slow_precompile_config": "stage_compilers",
    "CachingAutotuner.benchmark_all_configs": "stage_autotune",
    "CachingAutotuner.combo_sequential_autotune": "stage_autotune",
    "CachingAutotuner.coordinate_descent_tuning": "stage_autotune",
    "benchmark_fused_nodes": "stage_autotune",
    "pad_mm_benchmark": "stage_autotune",
}
# Of such a span the name does not tell whether anything was compiled in it.
_COMPILING_OR_LOADING = ("async_compile.precompile", "async_compile.wait")
STAGES = tuple(dict.fromkeys(STAGE_OF.values()))
REST = "stage_rest"


def stage_of(span: Span, spans: Iterable[Span]) -> str | None:
    """The stage of one of these spans, None if it belongs to the one around it."""
    if span.name in _COMPILING_OR_LOADING:
        generating = (each for each in spans if each.name == "code_gen")
        if any(each.start <= span.start and span.end <= each.end for each in generating):
            return "stage_compilers"
    return STAGE_OF.get(span.name)


def exclusive(spans: Iterable[Span]) -> dict[str, float]:
    """Seconds in each stage less those in the stages inside it; the sum is that of the outermost spans.

    ``spans`` are of one thread, so two of them are apart or one holds the other.
    """
    seconds = dict.fromkeys(STAGES, 0.0)
    around: list[tuple[Span, str]] = []
    told = list(spans)
    # Of two with the same ends, the one that was told later is the outer one.
    staged = [(span, stage) for span in reversed(told) if (stage := stage_of(span, told))]
    for span, stage in sorted(staged, key=lambda item: (item[0].start, -item[0].end)):
        while around and around[-1][0].end <= span.start:
            around.pop()
        seconds[stage] += span.seconds
        if around:
            seconds[around[-1][1]] -= span.seconds
        around.append((span, stage))
    return seconds


def record(bench, case: str, first_call: float, spans: list[Span] | None) -> None:
    """Record the stages of a first call of so many seconds, and what is left of it outside of all."""
    if spans is None:
        bench.say(f"{case}: stages not reported by this release")
        return
    found = exclusive(spans)
    entered = {stage_of(span, spans) for span in spans}
    for stage, seconds in found.items():
        bench.record(stage, seconds, "s", case=case, detail="" if stage in entered else "not entered")
    bench.record(REST, first_call - sum(found.values()), "s", case=case)
