"""What may be called a difference, and what may not? Each test states one rule."""

import math
import random

import pytest

from complab.report import statistics

TIGHT = statistics.Interval(1.0, 0.995, 1.005, 5)


def test_the_interval_of_three_processes_is_the_one_computed_by_hand():
    # Logs 0, 0.0953102, 0.1906204: mean 0.0953102, deviation 0.0953102, error 0.0550274;
    # t for 2 degrees of freedom at 95 % is 4.302653 in any printed table; half width 0.2367640.
    told = statistics.interval([1.0, 1.1, 1.21], 0.95)
    assert told.estimate == pytest.approx(1.1)
    assert told.low == pytest.approx(1.1 * math.exp(-0.2367640), rel=1e-6)
    assert told.high == pytest.approx(1.1 * math.exp(0.2367640), rel=1e-6)
    assert told.processes == 3


@pytest.mark.parametrize(("processes", "quantile"), [(2, 12.7062), (5, 2.7764), (10, 2.2622)])
def test_the_interval_takes_the_t_quantile_of_its_number_of_processes(processes, quantile):
    logs = [0.01 * number for number in range(processes)]
    mean = sum(logs) / processes
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / (processes - 1))
    told = statistics.interval([math.exp(value) for value in logs], 0.95)
    half = math.log(told.high / told.estimate)
    assert half == pytest.approx(quantile * deviation / math.sqrt(processes), rel=1e-4)


def test_one_process_has_no_interval_and_is_not_measurable():
    told = statistics.interval([2.0], 0.95)
    assert (told.estimate, told.low, told.high) == (2.0, None, None)
    assert statistics.verdict(told, TIGHT, 0.03, 3) == "not measurable"


def test_a_drift_that_falls_on_both_halves_of_a_round_cancels():
    eager = [1.0, 1.1, 1.5, 2.0, 3.0]
    assert statistics.paired_ratio([0.8 * value for value in eager], eager) == pytest.approx(0.8)


def test_a_disturbed_round_does_not_move_a_process():
    calm, disturbed = [0.9] * 11, [0.9] * 10 + [50.0]
    assert statistics.paired_ratio(disturbed, [1.0] * 11) == statistics.paired_ratio(calm, [1.0] * 11)


def test_rounds_that_do_not_pair_are_no_ratio():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        statistics.paired_ratio([1.0, 1.0], [1.0])


@pytest.mark.fault("T18", "a known slowdown of 10 %")
def test_a_ten_percent_slowdown_is_found():
    ratio = statistics.interval([1.09, 1.10, 1.11, 1.10, 1.105], 0.95)
    assert statistics.verdict(ratio, TIGHT, 0.03, 3) == "slower"


def test_a_ratio_and_its_inverse_get_mirrored_verdicts():
    for samples in ([1.09, 1.10, 1.11], [1.03, 1.04, 1.05], [1.02, 1.0, 1.01]):
        there = statistics.verdict(statistics.interval(samples, 0.95), TIGHT, 0.03, 3)
        inverse = statistics.interval([1 / value for value in samples], 0.95)
        mirror = {"slower": "faster", "no resolved difference": "no resolved difference"}
        assert statistics.verdict(inverse, TIGHT, 0.03, 3) == mirror[there]


def test_an_effect_below_the_practical_threshold_is_no_difference_however_sharp():
    ratio = statistics.interval([1.0199, 1.02, 1.0201], 0.95)
    assert statistics.verdict(ratio, TIGHT, 0.03, 3) == "no resolved difference"
    assert statistics.verdict(ratio, TIGHT, 0.01, 3) == "slower"


def test_an_effect_inside_the_noise_of_the_machine_is_no_difference():
    ratio = statistics.interval([1.09, 1.10, 1.11], 0.95)
    noisy = statistics.Interval(1.0, 1 / 1.2, 1.2, 3)
    assert statistics.noise_floor(noisy) == pytest.approx(0.2)
    assert statistics.verdict(ratio, noisy, 0.03, 3) == "no resolved difference"


def test_an_interval_that_only_touches_the_band_is_no_difference():
    low, high = statistics.band(TIGHT, 0.03)
    assert (
        statistics.verdict(statistics.Interval(1.1, high, 1.2, 5), TIGHT, 0.03, 3) == "no resolved difference"
    )
    assert (
        statistics.verdict(statistics.Interval(0.9, 0.8, low, 5), TIGHT, 0.03, 3) == "no resolved difference"
    )


@pytest.mark.fault("T18", "a control that fails")
def test_a_control_that_finds_a_difference_in_nothing_makes_all_not_measurable():
    broken = statistics.Interval(1.06, 1.05, 1.07, 5)
    ratio = statistics.interval([1.5, 1.51, 1.52], 0.95)
    assert statistics.verdict(ratio, broken, 0.03, 3) == "not measurable"
    mirrored = statistics.Interval(1 / 1.06, 1 / 1.07, 1 / 1.05, 5)
    assert statistics.verdict(ratio, mirrored, 0.03, 3) == "not measurable"


def test_too_few_control_processes_are_too_few():
    ratio = statistics.interval([1.5, 1.51, 1.52], 0.95)
    assert statistics.verdict(ratio, statistics.interval([1.0], 0.95), 0.03, 3) == "not measurable"


def test_the_smallest_effect_is_where_the_verdict_turns():
    ratio = statistics.interval([0.99, 1.0, 1.01], 0.95)
    effect = statistics.smallest_effect(ratio, TIGHT, 0.03)
    for factor, word in ((effect + 1.001e-3, "slower"), (effect - 1e-3, "no resolved difference")):
        moved = statistics.interval([(1 + factor) * value for value in (0.99, 1.0, 1.01)], 0.95)
        assert statistics.verdict(moved, TIGHT, 0.03, 3) == word


def test_spread_counts_every_process_outliers_included():
    assert statistics.spread([1.0, 1.0, 1.0, 1.5]) == pytest.approx(0.5)


@pytest.mark.fault("T18", "processes that differ in nothing")
def test_processes_that_differ_in_nothing_are_rarely_called_different():
    """Five noisy processes, nothing changed: the rule must not cry wolf more often than it says."""
    source = random.Random(1)
    alarms = 0
    for _ in range(400):
        ratio, control = (
            statistics.interval([source.lognormvariate(0, 0.05) for _ in range(5)], 0.95) for _ in range(2)
        )
        alarms += statistics.verdict(ratio, control, 0.0, 3) in ("faster", "slower")
    assert alarms <= 0.05 * 400
