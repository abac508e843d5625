"""WORTH IT says what its processes resolve: faster, slower, too short a life; one alone says less."""

import math

import pytest

from complab.diagnose import cost, interventions
from complab.diagnose.case import Case
from complab.diagnose.judgement import FAIL, NO_EVIDENCE, PASS
from complab.diagnose.lab import Noted, Process

EAGER_S = 1e-3
COMPILING_S = 10.0


def noted(ratio: float, spread: float) -> Noted:
    """What one process notes of ten calls, the first of which compiles, and of twenty steady rounds."""
    compiled = [EAGER_S * ratio * (1 + spread * (-1) ** number) for number in range(20)]
    rounds = {"eager": [10 * EAGER_S] * 20, "compiled": [10 * each for each in compiled]}
    lines = [
        {
            "call": call,
            "fate": "reuse" if call else "new variant",
            "kept": int(not call),
            "seconds": {"eager": EAGER_S, "compiled": EAGER_S * ratio + COMPILING_S * (not call)},
        }
        for call in range(10)
    ]
    return Noted([*lines, {"steady": {"rounds": rounds | {"control": rounds["eager"]}, "calls": 10}}], True)


class Processes:
    """Stands for the lab: each further process finds the next of these ratios."""

    def __init__(self, ratios: list[float], spread: float):
        self.left, self._spread = list(ratios), spread

    def process(self, runs: list[dict], cache: str = "") -> Process:
        return Process({runs[0]["label"]: noted(self.left.pop(0), self._spread)})


def case(*ratios: float, quick: bool = False, life: int | None = None, spread: float = 0.01) -> Case:
    first = Process(
        {"eager": Noted([{"subject": {"real_calls": life}}]), "compiled": noted(ratios[0], spread)}
    )
    return Case(Processes(list(ratios[1:]), spread), first, quick)


def judged(*ratios: float, **facts):
    return cost.worth_it(case(*ratios, **facts))


def test_three_processes_that_agree_are_enough():
    subject = case(0.5, 0.51, 0.49, 9.9)
    assert cost.worth_it(subject).verdict == PASS
    assert subject.lab.left == [9.9]


@pytest.mark.parametrize(
    ("ratios", "word"),
    [((1.5, 1.4, 1.6), "slower"), ((1.0, 1.01, 0.99), "not resolved as faster")],
    ids=["slower", "no difference"],
)
def test_what_saves_nothing_fails(ratios, word):
    told = judged(*ratios)
    assert (told.verdict, told.mechanism) == (FAIL, "no-saving")
    assert told.evidence.endswith(word)


def test_an_effect_that_three_noisy_processes_leave_open_gets_more():
    told = judged(0.75, 0.95, 0.85, 0.82, 0.84, 0.83)
    assert told.verdict == PASS
    assert 3 < told.facts["processes"] <= cost.MAXIMUM_PROCESSES


def test_processes_are_not_made_for_ever():
    told = judged(0.5, 1.5, 0.5, 1.5, 0.5, 1.0)
    assert told.facts["processes"] == cost.MAXIMUM_PROCESSES


def test_an_interval_that_holds_large_savings_and_large_losses_is_no_evidence():
    told = judged(0.5, 1.5, 0.5, 1.5, 0.5, 1.0)
    assert told.verdict == NO_EVIDENCE
    assert "so wide an interval tells nothing" in told.evidence


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(0.5, PASS), (2.0, FAIL), (0.95, NO_EVIDENCE), (1.0, NO_EVIDENCE), (1.05, NO_EVIDENCE)],
)
def test_a_single_process_says_no_more_than_it_resolves(ratio, verdict):
    told = judged(ratio, quick=True)
    assert told.verdict == verdict
    assert ("run it without --quick" in told.evidence) == (verdict == NO_EVIDENCE)


def test_a_life_too_short_to_pay_is_named_beside_a_clear_saving():
    told = judged(0.5, 0.5, 0.5, life=8)
    assert (told.verdict, told.mechanism) == (FAIL, "never-amortised")


@pytest.mark.parametrize("quick", [False, True])
def test_a_life_shorter_than_compiling_is_told_though_the_ratio_is_open(quick):
    """Eight calls of a millisecond cannot pay ten seconds, however fast they become."""
    told = judged(*[0.97, 1.0, 0.98, 0.97, 1.0, 0.98], quick=quick, life=8)
    assert (told.verdict, told.mechanism) == (FAIL, "never-amortised")


def test_a_long_life_leaves_an_open_ratio_no_saving():
    told = judged(1.0, 1.01, 0.99, life=10**7)
    assert (told.verdict, told.mechanism) == (FAIL, "no-saving")


def test_slower_is_no_saving_however_short_the_life():
    assert judged(2.0, 2.0, 2.0, life=8).mechanism == "no-saving"


def test_a_life_that_pays_passes():
    told = judged(0.5, 0.5, 0.5, life=50_000)
    assert told.verdict == PASS
    assert "and the program makes 50000" in told.evidence


def test_the_break_even_counts_what_compiling_cost_against_what_a_call_saves():
    paid = judged(0.5, 0.5, 0.5, spread=0).facts["break-even calls, cold"]
    assert paid["estimate"] == pytest.approx(COMPILING_S / (EAGER_S / 2), rel=1e-6)
    assert paid["if compiled calls took no time"] == pytest.approx(COMPILING_S / EAGER_S, rel=1e-3)


def test_the_break_even_is_never_where_nothing_is_saved():
    assert judged(2.0, 2.0, 2.0).facts["break-even calls, cold"]["estimate"] == math.inf


def test_a_stream_that_was_not_timed_is_no_evidence():
    subject = case(0.5)
    subject.stream.lines[-1] = {"steady": {"problem": "made again, the calls raise IndexError"}}
    told = cost.worth_it(subject)
    assert (told.verdict, told.evidence) == (NO_EVIDENCE, "made again, the calls raise IndexError")


def test_the_cause_of_a_short_life_is_tested_by_the_calls_after_compiling():
    subject = case(0.5, 0.5, 0.5, life=8)
    told = interventions.run(subject, "WORTH IT", cost.worth_it(subject))
    assert told["verdict"] == interventions.CONFIRMED
    assert told["before"].startswith("8 calls: 10 s")
    assert told["after"].startswith("4 ms, eager 8 ms")


def test_overhead_that_alone_costs_more_is_told_apart_from_kernels_that_save_nothing():
    subject = case(2.0, 2.0, 2.0, 1.8)
    told = interventions.run(subject, "WORTH IT", cost.worth_it(subject))
    assert (told["before"], told["after"]) == ("2.00 of eager", "1.80 of eager")
    assert told["verdict"] == interventions.CONFIRMED
    subject = case(1.0, 1.0, 1.0, 1.0)
    told = interventions.run(subject, "WORTH IT", cost.worth_it(subject))
    assert told["verdict"] == interventions.NO_TEST
    assert "the compiled kernels themselves save nothing" in told["after"]
