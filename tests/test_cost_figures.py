"""Do the figures about cost show what their numbers say? Drawn from made-up cells of known cost."""

import io
import math

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from complab import evidence
from complab.config import Cell
from complab.evidence import Record, Row
from complab.report import cumulative_time, figures, gather, lineage, relative_cost

NOISE = {"confidence": 0.95, "practical_threshold": 0.03, "minimum_processes": 3, "spread_warning": 0.10}
EAGER = 0.002
PROVEN = {"none": "not-applicable", "cold": "cold-proven", "warm": "warm-proven"}


def record(policy, cache, replicate, ratio, first):
    """A measured cell with three rounds; ``ratio`` None compiles nothing."""
    cell = Cell("e99", policy, cache, replicate)
    told = [] if first is None else [("first_call", None, first)]
    for call in range(3):
        told += [("steady_eager", call, EAGER), ("steady_control", call, EAGER * (1 + call / 1000))]
        told += [] if ratio is None else [("steady_compiled", call, EAGER * ratio)]
    rows = tuple(Row(*vars(cell).values(), "region", call, name, value, "s") for name, call, value in told)
    provenance = {
        "outcome": "measured",
        "cache": {"verdict": PROVEN[cache], "reasons": []},
        "files": {evidence.EVIDENCE: {"sha256": "0" * 64, "bytes": 1}},
    }
    return Record(cell, None, provenance, rows)


def gathered(policies, replicates=3):
    """Evidence of policies: ratio with first call cold and warm, or None for one that compiles nothing."""
    records = []
    for replicate in range(1, replicates + 1):
        for policy, told in policies.items():
            ratio, *firsts = told or (None, None)
            for cache, first in zip(("cold", "warm") if told else ("none",), firsts, strict=True):
                records.append(record(policy, cache, replicate, ratio, first))
    return gather.Gathered("current", "e99", "Made up", NOISE, tuple(records))


class Settings:
    """As much of the settings as drawing reads."""

    def __init__(self, kind, **spec):
        self.spec = {"kind": kind, "cases": ["region"], "policies": [], **spec}

    def experiment(self, _name):
        return {"exhibit": {"figure": self.spec}}


def painted(kind, told, **spec):
    """The kind's marks and a figure that shows them."""
    settings = Settings("", **spec)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rc_file(figures.STYLE)
        figure = Figure(figsize=(figures.WIDTH, kind.HEIGHT))
        FigureCanvasAgg(figure)
        marks = kind.marks(told, settings.spec)
        kind.paint(figure, marks, settings.spec, NOISE)
    return marks, figure


def texts(axes):
    return [text.get_text() for text in axes.texts]


def beside(axes):
    """What stands to the right of each row."""
    (numbers,) = axes.child_axes
    return [label.get_text() for label in numbers.get_yticklabels()]


COSTS = {"model": (0.5, 12.0, 1.0), "tiny": (3.0, 2.0, 0.5)}


def test_the_break_even_lies_where_the_lines_cross():
    marks, figure = painted(cumulative_time, gathered(COSTS))
    axes = figure.axes[0]
    lines = {line.get_linestyle(): line for line in axes.lines if len(line.get_xdata()) > 2}
    for cache, dashes in (("cold", "-"), ("warm", "--")):
        even = marks[f"model/{cache}/break even"]
        calls = 1 + even.value
        first = marks[f"model/{cache}/first"].value
        assert first + (calls - 1) * 0.5 * EAGER == pytest.approx(calls * EAGER)
        (dot,) = [line for line in axes.lines if list(line.get_xdata()) == [pytest.approx(calls)]]
        assert dot.get_ydata()[0] == pytest.approx(calls * EAGER)
        assert dashes in lines
        assert axes.get_xlim()[0] == 1 and axes.get_xlim()[1] > even.high


def test_every_line_is_named_and_a_workload_that_never_pays_says_so():
    _, figure = painted(cumulative_time, gathered(COSTS))
    model, tiny = figure.axes
    for axes in (model, tiny):
        assert {"eager", "cold", "warm"} <= set(texts(axes))
    assert "12,000" in texts(model) and "1,000" in texts(model)
    assert "break even never:\ncompiled is slower" in texts(tiny)
    assert not any(line.get_marker() == "o" for line in tiny.lines)


def test_one_process_draws_the_lines_and_no_break_even():
    _, figure = painted(cumulative_time, gathered(COSTS, replicates=1))
    assert "break even\nnot measurable" in texts(figure.axes[0])


def test_a_policy_without_measurements_leaves_its_panel_with_the_reason():
    told = gathered({"model": (0.5, 12.0, 1.0)})
    empty = tuple(
        Record(item.cell, None, item.provenance, tuple(r for r in item.rows if r.metric == "first_call"))
        for item in told.records
    )
    _, figure = painted(cumulative_time, gather.Gathered("current", "e99", "Made up", NOISE, empty))
    assert texts(figure.axes[0]) == ["not measured"]


@pytest.mark.parametrize(
    ("calls", "text"),
    [(3.14159, "3.1"), (0, "0"), (172.4, "170"), (30669, "31,000"), (3.16e6, "3.2 million")],
)
def test_calls_are_told_with_two_digits(calls, text):
    assert cumulative_time._rough(calls) == text


def test_each_policy_is_a_dot_with_its_words_beside_the_band():
    policies = {"eager": None, "none": (0.5, 9.0, 1.0), "mid-stack": (1.01, 9.0, 1.0)}
    marks, figure = painted(relative_cost, gathered(policies))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(policies)
    assert beside(axes) == [
        "1.00 [1.00, 1.00]\nno resolved difference",
        "0.50 [0.50, 0.50]\nfaster",
        "1.01 [1.01, 1.01]\nno resolved difference",
    ]
    dots = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert dots == [marks[f"{policy}/ratio"].value for policy in policies]
    band = next(patch for patch in axes.patches if patch.get_y() == pytest.approx(-0.15))
    assert math.isclose(band.get_x() * (band.get_x() + band.get_width()), 1)
    assert {fact.row.cache for number in marks.values() for fact in number.facts} == {"none", "cold"}


def test_only_the_chosen_policies_are_drawn_and_one_without_the_case_says_so():
    policies = {"clean": (0.5, 9.0, 1.0), "print": (0.6, 9.0, 1.0)}
    _, figure = painted(relative_cost, gathered(policies), policies=["print"])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["print"]
    _, figure = painted(relative_cost, gathered(policies), cases=["elsewhere"])
    assert beside(figure.axes[0]) == ["not measured"] * 2


@pytest.mark.parametrize("kind", ["cumulative-time", "relative-cost"])
def test_a_picture_is_the_same_to_the_byte_and_each_mark_has_a_lineage(kind):
    told = gathered(COSTS)
    marks, files = figures.draw(told, Settings(kind))
    assert files == figures.draw(told, Settings(kind))[1]
    assert Image.open(io.BytesIO(files["e99.png"])).text["Evidence"] == told.digest
    assert all(lineage.entry(number)["rows"] for number in marks.values())
