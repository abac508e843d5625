"""What do numbers from a handful of processes say, and what can they not say?

The process is the unit: rounds and calls inside one share its fate (memory layout, clock, neighbours)
and are boiled down to one number before anything is compared. Intervals are t-intervals on logarithms:
a percentile bootstrap of five processes is far too narrow.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

FASTER, SLOWER = "faster", "slower"
NO_DIFFERENCE = "no resolved difference"
NOT_MEASURABLE = "not measurable"


@dataclass(frozen=True)
class Interval:
    """Geometric mean of one positive number per process, with the ends of its t-interval.

    From one process there is no interval: ``low`` and ``high`` are None.
    """

    estimate: float
    low: float | None
    high: float | None
    processes: int

    @property
    def half_width(self) -> float:
        """Relative distance from the estimate to the upper end: the smallest effect it resolves."""
        return math.inf if self.high is None else self.high / self.estimate - 1


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """One process's ratio: exp of the median, over rounds, of the log ratio within a round.

    A drift or a disturbance falls on both halves of a round, so it cancels before the median is taken.
    """
    logs = [math.log(above / below) for above, below in zip(numerators, denominators, strict=True)]
    return math.exp(statistics.median(logs))


def interval(per_process: Sequence[float], confidence: float) -> Interval:
    """Geometric mean and two-sided t-interval of one positive number per process."""
    logs = [math.log(value) for value in per_process]
    mean, processes = math.fsum(logs) / len(logs), len(logs)
    if processes == 1:
        return Interval(math.exp(mean), None, None, 1)
    error = statistics.stdev(logs, mean) / math.sqrt(processes)
    half = float(stdtrit(processes - 1, (1 + confidence) / 2)) * error
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), processes)


def noise_floor(control: Interval) -> float:
    """Relative half width of an A/A control's interval: what differs by this much with nothing changed."""
    return control.half_width


def band(control: Interval, practical_threshold: float) -> tuple[float, float]:
    """Ratios that count as no difference: 1 give or take the noise floor or the threshold, the larger.

    Both ends are equally far from 1 as factors, so that a ratio and its inverse are judged alike.
    """
    width = 1 + max(noise_floor(control), practical_threshold)
    return 1 / width, width


def verdict(ratio: Interval, control: Interval, practical_threshold: float, minimum_processes: int) -> str:
    """One of four words for a ratio of times, 1 meaning equal and less meaning faster.

    Faster and slower need the whole interval outside the band of no difference. Not measurable: too
    few processes, or an A/A control that finds a difference beyond the threshold where there is none.
    """
    if min(ratio.processes, control.processes) < minimum_processes:
        return NOT_MEASURABLE
    if control.low > 1 + practical_threshold or control.high < 1 / (1 + practical_threshold):
        return NOT_MEASURABLE
    lowest, highest = band(control, practical_threshold)
    if ratio.high < lowest:
        return FASTER
    if ratio.low > highest:
        return SLOWER
    return NO_DIFFERENCE


def smallest_effect(ratio: Interval, control: Interval, practical_threshold: float) -> float:
    """Relative difference from which on this comparison could have said faster or slower."""
    return (1 + max(noise_floor(control), practical_threshold)) * (1 + ratio.half_width) - 1


def smallest_change(per_process: Sequence[float], confidence: float) -> float:
    """Relative change that a second group of as many processes with the same spread would resolve.

    Half width of the t-interval of the difference of two means of logs, as a factor less one.
    """
    processes = len(per_process)
    deviation = statistics.stdev(math.log(value) for value in per_process)
    quantile = float(stdtrit(2 * processes - 2, (1 + confidence) / 2))
    return math.exp(quantile * deviation * math.sqrt(2 / processes)) - 1


def compared(above: Sequence[float], below: Sequence[float], confidence: float) -> Interval:
    """Ratio of the geometric means of two groups of processes, with Welch's t-interval.

    For what cannot be measured twice in one process, as a cold first call.
    """
    groups = [[math.log(value) for value in group] for group in (above, below)]
    difference = statistics.fmean(groups[0]) - statistics.fmean(groups[1])
    errors = [statistics.variance(group) / len(group) for group in groups]
    processes = min(map(len, groups))
    if not sum(errors):
        return Interval(*[math.exp(difference)] * 3, processes)
    freedom = sum(errors) ** 2 / sum(
        error**2 / (len(group) - 1) for error, group in zip(errors, groups, strict=True)
    )
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * math.sqrt(sum(errors))
    return Interval(math.exp(difference), math.exp(difference - half), math.exp(difference + half), processes)


def spread(per_process: Sequence[float]) -> float:
    """Largest over smallest process, less one. Outliers are told with this, never dropped."""
    return max(per_process) / min(per_process) - 1
