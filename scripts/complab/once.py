"""What is asked in the first replicate only, because every process would answer it alike?

What can be captured, and what an instrument changes, follows from program and release and is counted,
not timed. A further process of the same policy adds nothing to it.
"""

from complab.measure.observers import observed

REPLICATE = 1
# Facts of the probes, all there are. Any other metric is missed wherever a replicate lacks it.
METRICS = frozenset(
    {
        "explain_graphs",
        "explain_breaks",
        "fullgraph_accepts",
        "trace_frames",
        "trace_graphs",
        "trace_breaks",
        "trace_recompiles",
        "trace_cache_hits",
        "trace_cache_misses",
    }
)


def may_lack(replicate: int, policy: str, case: str, metric: str) -> bool:
    """Whether a process need not have the fact: it is asked once, and this is not the replicate asked."""
    return replicate != REPLICATE and (metric in METRICS or observed(policy, case))
