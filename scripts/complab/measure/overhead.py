"""How much does watching add to a compiled call? On and off in turn, in the very process that was watched."""

import gc
import statistics
import time
from collections.abc import Callable

ROUNDS, CALLS = 41, 400
# The 14th and the 28th of 41 differences: an interval of their median of more than 95 percent, whatever
# their distribution.
RANKS = (13, 27)


def added(watched: Callable, bare: Callable, argument) -> dict:
    """Seconds by which a call of the watched function is longer: median of the rounds, and its interval."""
    watched(argument)
    differences = []
    collects = gc.isenabled()
    gc.disable()
    try:
        for number in range(ROUNDS):
            # Either goes first in turn, so that a drift falls on both.
            order = (watched, bare) if number % 2 else (bare, watched)
            seconds = {function: _seconds_per_call(function, argument) for function in order}
            differences.append(seconds[watched] - seconds[bare])
    finally:
        if collects:
            gc.enable()
    low, high = (sorted(differences)[rank] for rank in RANKS)
    return {
        "added_s_per_call": statistics.median(differences),
        "low": low,
        "high": high,
        "rounds": ROUNDS,
        "calls": CALLS,
    }


def _seconds_per_call(function, argument) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        function(argument)
    return (time.perf_counter() - start) / CALLS
