"""What does each compiler stance do to a call of a compiled shape, and to one of a new shape?

A model is compiled for one length under the default stance. Then a stance is set, and the same length and
a new one (twice) arrive: does the call raise, enter compiled code, or capture a graph?
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

import contextlib
from functools import partial

import torch

from complab.measure import capture, dynamo, failure, policies, workload

UNKNOWN = "unknown"
STANCES = {
    "fail_on_recompile": "fail_on_recompile",
    "force_eager": "force_eager",
    "eager_on_recompile": "eager_on_recompile",
    "eager_then_compile": "eager_then_compile",
    "aot_eager_then_compile": "aot_eager_then_compile",
    UNKNOWN: "no_such_stance",
}
# Calls under this stance compile by aot_eager, which keeps no cache.
CACHELESS = "aot_eager_then_compile"


@torch.no_grad()
def timed(bench):
    """Try every stance that this release has, and a name that none has."""
    settings = bench.settings
    sizes = settings["workload"] | {"blocks": settings["settings"]["blocks"]}
    model = workload.build_model(sizes, settings["seed"], bench.device)
    lengths = [settings["settings"][key] for key in ("length", "new_length")]
    seen, new = workload.build_requests(
        lengths, settings["workload"]["vocabulary"], settings["seed"], bench.device
    )
    for case, stance in STANCES.items():
        if case != UNKNOWN and not dynamo.offers_stance(stance):
            bench.say(f"{case}: not offered by torch {torch.__version__}")
            continue
        with bench.capturing(case):
            _try_stance(bench, case, stance, model, seen, new)


def _try_stance(bench, case, stance, model, seen, new):
    dynamo.forget_variants()
    compiled = policies.compile_with(bench.policy, model)
    seconds, actual = bench.clock.time(compiled, seen)
    if bench.agree(case, model(seen), actual, call=0):
        bench.record("first_call", seconds, "s", case=case)
    try:
        _, error = failure.guarded(partial(torch.compiler.set_stance, stance))
        bench.record("setting_raises", error is not None, "1", case=case, detail=_told(error))
        with dynamo.cacheless() if stance == CACHELESS else contextlib.nullcontext():
            calls = {"same_shape": seen, "new_shape": new, "new_shape_again": new}
            for index, (name, tokens) in enumerate(calls.items(), 1):
                _call(bench, case, index, name, compiled, tokens, model)
    finally:
        torch.compiler.set_stance("default")


def _call(bench, case, index, name, compiled, tokens, model):
    """One call under the stance: whether it raised, entered compiled code, captured graphs, was right."""
    graphs = dynamo.graphs_captured()
    with capture.entered_regions() as entered:
        actual, error = failure.guarded(partial(compiled, tokens))
    captured = dynamo.graphs_captured() - graphs
    ran_compiled = bool(captured or entered)
    if error is None:
        bench.agree(case, model(tokens), actual, call=index)
    how = "captures a graph" if captured else "enters a variant" if ran_compiled else "runs eager"
    told = _told(error) or how
    bench.record(f"{name}_raises", error is not None, "1", case=case, detail=_told(error))
    bench.record(f"{name}_compiled", ran_compiled, "1", case=case, detail=told)
    bench.record(f"{name}_graphs", captured, "graphs", case=case)
    bench.say(f"{case}: {name.replace('_', ' ')}: {told}")


def _told(error):
    return failure.tell(error) if error else ""
