"""Do the statistics find what is there and nothing else, in what this project really measures?

Not simulated noise: campaigns are drawn from recorded fresh processes of one real cell, by a seed that
was fixed before any result was seen.
"""

import csv
import random
from pathlib import Path

import pytest

from complab import config
from complab.report import statistics

SAMPLES = Path(__file__).parent / "data" / "samples" / "e3_graph_breaks.csv"
SEED = 20261129
CAMPAIGNS = 200
# One in twenty is what 95 % intervals allow; 18 of 200 is exceeded by chance in less than 1 % of all seeds.
FALSE_ALARMS = 18
FOUND = 180
SLOWDOWN = 1.10
CASES = ("with_break", "without_break")

SETTINGS = config.load()
NOISE = SETTINGS["noise"]
# Those of the experiments whose times are headlines. Three processes, which others have, would find this
# slowdown in 59 and 133 of the 200; what a run could not have seen is in its noise table.
PROCESSES = SETTINGS.experiment("e6_dynamic_shapes")["replicates"]


class Process:
    """What one recorded process timed, in seconds."""

    def __init__(self, lines):
        self.first_call = float(next(line["first_call"] for line in lines if line["first_call"]))
        rounds = [line for line in lines if line["round"]]
        self.eager, self.control = (
            [float(line[metric]) for line in rounds] for metric in ("steady_eager", "steady_control")
        )

    @property
    def ratio(self):
        """The second eager pass over the first, where nothing differs."""
        return statistics.paired_ratio(self.control, self.eager)


def recorded(case):
    with open(SAMPLES, encoding="utf-8", newline="") as stream:
        lines = [line for line in csv.DictReader(stream) if line["case"] == case]
    processes = dict.fromkeys(line["process"] for line in lines)
    return [Process([line for line in lines if line["process"] == process]) for process in processes]


def judged(candidate, control):
    ratio, floor = (statistics.interval(samples, NOISE["confidence"]) for samples in (candidate, control))
    return statistics.verdict(ratio, floor, NOISE["practical_threshold"], NOISE["minimum_processes"])


def steady_campaigns(case, factor):
    """The verdicts of campaigns in which the candidate is eager itself, slowed down by a factor.

    Candidate and control are two draws of whole processes, every round used as a real cell uses it. Halving
    the rounds of each process instead, one half for either, is another and weaker instrument: 30 to 36 and 24
    to 30 rounds a process gave no more than 1 false alarm of 200 too, but found the slowdown in 97 to 194 of
    200, depending on which rounds went where. So 10 % takes the 60 rounds that the quick scale has.
    """
    source, processes = random.Random(SEED), recorded(case)
    for _ in range(CAMPAIGNS):
        candidate, control = (source.choices(processes, k=PROCESSES) for _ in range(2))
        yield judged([factor * each.ratio for each in candidate], [each.ratio for each in control])


def cost_campaigns(case, factor=1.0):
    """Relative change and smallest visible one, of two groups of processes of one cell."""
    source, processes = random.Random(SEED), recorded(case)
    for _ in range(CAMPAIGNS):
        chosen = source.sample(processes, 2 * PROCESSES)
        before, after = ([each.first_call for each in group] for group in (chosen[::2], chosen[1::2]))
        yield statistics.compared([factor * seconds for seconds in after], before, NOISE["confidence"])


def test_the_samples_are_enough_processes_to_draw_campaigns_from():
    for case in CASES:
        assert len(recorded(case)) >= max(8, 2 * PROCESSES)
        assert all(len(each.eager) == len(each.control) >= 40 for each in recorded(case))


@pytest.mark.fault("T18", "the same variant twice")
@pytest.mark.parametrize("case", CASES)
def test_eager_against_itself_is_rarely_called_different(case, capsys):
    verdicts = list(steady_campaigns(case, 1.0))
    alarms = sum(verdict in (statistics.FASTER, statistics.SLOWER) for verdict in verdicts)
    withheld = verdicts.count(statistics.NOT_MEASURABLE)
    with capsys.disabled():
        print(f"\n{case}, eager against itself: {alarms} false alarms, {withheld} withheld, of {CAMPAIGNS}")
    assert alarms + withheld <= FALSE_ALARMS


@pytest.mark.fault("T18", "a planted slowdown of 10 %")
@pytest.mark.parametrize("case", CASES)
def test_a_planted_slowdown_of_ten_percent_is_found(case, capsys):
    found = list(steady_campaigns(case, SLOWDOWN)).count(statistics.SLOWER)
    with capsys.disabled():
        print(f"\n{case}, a slowdown of {SLOWDOWN - 1:.0%}: found in {found} of {CAMPAIGNS}")
    assert found >= FOUND


@pytest.mark.parametrize("case", CASES)
def test_two_groups_of_one_cell_rarely_differ_in_compile_cost(case, capsys):
    told = list(cost_campaigns(case))
    alarms = sum(not change.low <= 1 <= change.high for change in told)
    effects = sorted(change.half_width for change in told)
    smallest = effects[CAMPAIGNS // 2]
    with capsys.disabled():
        print(
            f"\n{case}, compile cost of one cell: {alarms} false alarms of {CAMPAIGNS}; "
            f"smallest visible effect {smallest:.0%} ({effects[0]:.0%} to {effects[-1]:.0%})"
        )
    assert alarms <= FALSE_ALARMS


def test_a_compile_cost_that_doubles_is_seen():
    assert sum(change.low > 1 for change in cost_campaigns("with_break", 2.0)) >= FOUND
