"""Kind `cumulative-time`: after how many calls has compiling paid, from a cold cache and from a warm one?"""

import math
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from complab.report import labels
from complab.report.gather import Gathered
from complab.report.number import Ask, Number
from complab.report.selection import Where, find

HEIGHT = 2.9
COLOURS = {"eager": "#000000", "cold": "#0072B2", "warm": "#D55E00"}
DASHES = {"eager": "-", "cold": "-", "warm": (0, (5, 1.5))}
FACES = {"cold": COLOURS["cold"], "warm": "white"}
FIRST = Ask("total", ("first_call",), unit="s", rounding="3 significant")
EAGER = Ask("median", ("steady_eager",), unit="s", rounding="3 significant")
RATIO = Ask("ratio", ("steady_compiled",), "steady_eager", rounding="2 decimals")
VERDICT = Ask("verdict", ("steady_compiled",), "steady_eager")
UNITS = {1: "s", 1e-3: "ms", 1e-6: "µs", 1e-9: "ns"}


def marks(gathered: Gathered, spec: dict) -> dict[str, Number]:
    """What each policy's lines are drawn from, by `policy/cache/what`; the steady state is the cold one's."""
    case = spec["cases"][0]
    found = {}
    for policy in dict.fromkeys(record.cell.policy for record in gathered.records):
        cold = Where(policy, "cold", case)
        found[f"{policy}/cold/eager"] = find(gathered, EAGER, cold)
        found[f"{policy}/cold/ratio"] = find(gathered, RATIO, cold)
        found[f"{policy}/cold/verdict"] = find(gathered, VERDICT, cold)
        for cache in ("cold", "warm"):
            where = Where(policy, cache, case)
            even = Ask("break even", ("first_call", "steady_compiled"), "steady_eager", cache=cache)
            found[f"{policy}/{cache}/first"] = find(gathered, FIRST, where)
            found[f"{policy}/{cache}/break even"] = find(gathered, even, where)
    return found


def paint(figure: Figure, marks: dict[str, Number], spec: dict, noise: dict) -> None:
    """One panel per policy: the lines of eager, cold and warm, and where they cross."""
    policies = list(dict.fromkeys(name.split("/")[0] for name in marks))
    panels = figure.subplots(1, len(policies), squeeze=False)[0]
    wanted = [_panel(axes, policy, marks) for axes, policy in zip(panels, policies, strict=True)]
    panels[0].set_ylabel("time of all calls so far")
    figure.supxlabel("calls", fontsize=8)
    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            color=COLOURS[cache],
            markerfacecolor=FACES[cache],
            label=f"break even, {cache}, with interval",
        )
        for cache in FACES
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    labels.settle(figure)
    for axes, (texts, taken) in zip(panels, wanted, strict=True):
        boxes = [box for x, y in taken for box in labels.along(axes, x, y)]
        renderer = figure.canvas.get_renderer()
        boxes += [text.get_window_extent(renderer) for text in axes.texts]
        labels.place(axes, texts, boxes)


def _panel(axes: Axes, policy: str, marks: dict[str, Number]) -> tuple[list[labels.Label], list]:
    """Draw a policy; returns the labels it wants and the lines they may not cover."""
    axes.set(xscale="log", yscale="log")
    axes.set_title(policy)
    eager, ratio = marks[f"{policy}/cold/eager"], marks[f"{policy}/cold/ratio"]
    if not (eager.facts and ratio.facts):
        axes.text(
            0.5, 0.5, eager.head if not eager.facts else ratio.head, transform=axes.transAxes, ha="center"
        )
        return [], []
    evens = {cache: marks[f"{policy}/{cache}/break even"] for cache in FACES}
    firsts = {cache: marks[f"{policy}/{cache}/first"] for cache in FACES}
    calls = _calls(eager.value, firsts, evens)
    lines = {"eager": [(n, n * eager.value) for n in calls]}
    for cache, first in firsts.items():
        if first.facts:
            lines[cache] = [(n, first.value + (n - 1) * ratio.value * eager.value) for n in calls]
    for name, points in lines.items():
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=COLOURS[name], linestyle=DASHES[name], linewidth=1.2, zorder=3)
    texts = []
    taken = [tuple(zip(*pair, strict=True)) for points in lines.values() for pair in pairwise(points)]
    for cache, even in evens.items():
        if even.low is not None:
            drawn, text = _crossing(axes, cache, even, eager.value)
            taken.append(drawn)
            texts.append(text)
    texts += [_named(name, points) for name, points in lines.items()]
    _say(axes, evens)
    _axes(axes, calls[-1])
    return texts, taken


def _calls(eager: float, firsts: dict[str, Number], evens: dict[str, Number]) -> list[float]:
    """Numbers of calls to draw at, evenly on a log scale, until ten times what the last first call costs."""
    last = max([first.value / eager for first in firsts.values() if first.facts], default=1)
    last = max([last, *(even.high for even in evens.values() if even.high is not None)])
    decades = math.ceil(math.log10(max(last, 1)) + 0.5)
    return [10 ** (step / 20) for step in range(20 * decades + 1)]


def _named(name: str, points: list[tuple[float, float]]) -> labels.Label:
    """The label of a line, where lines are far apart: eager's at its middle, the others' at their start."""
    at = len(points) // 3 if name == "eager" else len(points) // 12
    return (name, *points[at], tuple(0.75 * part for part in to_rgb(COLOURS[name])))


def _crossing(axes: Axes, cache: str, even: Number, eager: float) -> tuple[tuple, labels.Label]:
    """Mark the break even on eager's line; returns the stretch of its interval and its label.

    It counts the calls after the first, so it lies one call further.
    """
    x, y = 1 + even.value, (1 + even.value) * eager
    low, high = 1 + even.low, 1 + even.high
    axes.plot([low, high], [y, y], "|-", color=COLOURS[cache], linewidth=1.1, markersize=6, zorder=5)
    axes.plot(x, y, "o", color=COLOURS[cache], markerfacecolor=FACES[cache], markersize=5, zorder=6)
    colour = tuple(0.75 * part for part in to_rgb(COLOURS[cache]))
    return ((low, high), (y, y)), (_rough(even.value), x, y, colour)


def _rough(calls: float) -> str:
    """Two significant digits, without an exponent."""
    rough = float(f"{calls:.2g}")
    return f"{rough / 1e6:g} million" if rough >= 1e6 else f"{rough:,.0f}" if rough >= 10 else f"{rough:g}"


def _say(axes: Axes, evens: dict[str, Number]) -> None:
    """Why there is no mark, in words, once if cold and warm have the same reason."""
    why = {cache: even.head for cache, even in evens.items() if even.low is None}
    if not why:
        return
    alike = len(set(why.values())) == 1 and len(why) == len(evens)
    if alike:
        reason, _, further = why["cold"].partition(": ")
        text = f"break even {reason}:\n{further}" if further else f"break even\n{reason}"
    else:
        text = "\n".join(f"{cache}: {reason}" for cache, reason in why.items())
    axes.text(0.96, 0.04, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=7)


def _axes(axes: Axes, last: float) -> None:
    axes.set_xlim(1, last)
    axes.xaxis.set_major_locator(LogLocator(10, numticks=6))
    axes.yaxis.set_major_locator(LogLocator(10, numticks=7))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: _with_unit(seconds)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())


def _with_unit(seconds: float) -> str:
    size = next((size for size in UNITS if seconds >= 0.999 * size), 1e-9)
    return f"{seconds / size:,.0f} {UNITS[size]}"
