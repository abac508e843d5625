"""What does one program's process count and take while one instrument looks at it?"""

import contextlib
from functools import partial

import torch

from complab.measure import capture, dynamo
from complab.measure.bench import Bench


def observe(bench: Bench, observer: str, function, arguments: tuple) -> None:
    """Compile, compare with eager and time under the observer's name; then record what was counted.

    Most observers are in the environment since before torch was imported. Explain looks before the first
    call, since it forgets what was compiled; the profiler looks at every call.
    """
    mark = dynamo.newest_compilation()
    if observer == "explain":
        capture.explain_summary(function, *arguments)
    with torch.profiler.profile() if observer == "profiler" else contextlib.nullcontext():
        compiled = torch.compile(function)
        expected = function(*arguments)
        seconds, actual = bench.clock.time(compiled, *arguments)
        if bench.agree(observer, expected, actual, call=0):
            bench.record("first_call", seconds, "s", case=observer)
        bench.say(f"{observer}: first call {seconds:.2f} s")
        bench.steady({observer: (partial(function, *arguments), partial(compiled, *arguments))})
    tried, counted = dynamo.frame_counts()
    frames = dynamo.frames_since(mark)
    kept = counted if frames is None else sum(frame.kept for frame in frames)
    bench.record("frames_tried", tried, "frames", case=observer)
    bench.record("frames_compiled", kept, "frames", case=observer)
    bench.record("graphs_captured", dynamo.graphs_captured(), "graphs", case=observer)
    for metric, count in dynamo.cache_counts().items():
        bench.record(metric, count, metric.rpartition("_")[2], case=observer)
