"""Does the structured trace of a process tell the same as its log and its counters?"""

import os
from pathlib import Path

from complab import structured, torchlog
from complab.measure import dynamo, policies
from complab.measure.bench import Bench


def text_of(folder: Path) -> str:
    """What torch has traced into a folder so far; it writes one file per process, at once."""
    return "".join(path.read_bytes().decode("utf-8") for path in sorted(folder.glob("*.log")))


def record(bench: Bench, case: str, function, calls: list[tuple]) -> None:
    """Compile a function, make the calls, and record every instrument's count of what happened.

    The trace's own counts are named `trace_*`; those without it are of the log and of Dynamo's state.
    """
    folder = Path(os.environ["TORCH_TRACE"])
    position, before = len(text_of(folder)), dynamo.cache_counts()
    compiled = policies.compile_with(bench.policy, function)
    with bench.capturing(case):
        for arguments in calls:
            compiled(*arguments)
    for metric, count in dynamo.cache_counts().items():
        bench.record(metric, count - before[metric], metric.rpartition("_")[2], case=case)
    told = structured.parse(text_of(folder)[position:])
    places, breaks = torchlog.first_at_each_place(told.breaks), torchlog.told_places(told.breaks)
    reasons = "; ".join(" | ".join(reason.splitlines()) for reason in told.recompiles)
    bench.record("trace_frames", told.frames, "frames", case=case)
    bench.record("trace_graphs", told.graphs, "graphs", case=case)
    bench.record("trace_breaks", len(places), "breaks", case=case, detail=breaks)
    bench.record("trace_recompiles", len(told.recompiles), "recompiles", case=case, detail=reasons)
    bench.record("trace_cache_hits", told.lookups("fx_graph", "hit"), "hits", case=case)
    bench.record("trace_cache_misses", told.lookups("fx_graph", "miss"), "misses", case=case)
