"""How long does a call take, measured so that a slow machine moves the control as well?"""

import gc
import time
from collections.abc import Callable

import torch

WARM_UP_ROUNDS = 3


class Clock:
    """Wall seconds of a call, with the device drained before and after."""

    def __init__(self, device: str):
        self._drain = torch.cuda.synchronize if device == "cuda" else lambda: None

    def time(self, function: Callable, *arguments) -> tuple[float, object]:
        """Seconds from an idle device to an idle device, and the function's result."""
        self._drain()
        start = time.perf_counter_ns()
        result = function(*arguments)
        self._drain()
        return (time.perf_counter_ns() - start) / 1e9, result


def interleaved(clock: Clock, passes: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every pass in every round, by name; sample i of each name is from the same round.

    Each round runs every pass once. The order is turned round from one round to the next and shifted
    by one every two rounds, so that drift, position and neighbours fall on all alike. The first rounds
    warm up and are dropped; how many is fixed beforehand. The garbage collector rests meanwhile: a
    collection would fall on one pass by chance.
    """
    names = list(passes)
    samples: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for number in range(-WARM_UP_ROUNDS, rounds):
            shift = number // 2 % len(names)
            turn = names[shift:] + names[:shift]
            for name in turn if number % 2 == 0 else reversed(turn):
                seconds, _ = clock.time(passes[name])
                if number >= 0:
                    samples[name].append(seconds)
    finally:
        if enabled:
            gc.enable()
    return samples
