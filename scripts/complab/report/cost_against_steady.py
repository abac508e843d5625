"""Kind `cost-against-steady`: which policy pays least for which steady state?"""

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from complab.report import labels, statistics
from complab.report.gather import Gathered
from complab.report.number import Ask, Number
from complab.report.selection import Where, find

HEIGHT = 3.5
BAND = "#E4E4E4"
SHAPES = "^oDsvPX"
COLOURS = ("#D55E00", "#0072B2", "#CC79A7", "#009E73", "#E69F00", "#56B4E9", "#000000")
SWEEP = Ask("total", ("compiled_time",), unit="s", rounding="3 significant")
EAGER_SWEEP = Ask("total", ("eager_time",), unit="s", rounding="3 significant")
RATIO = Ask("ratio", ("steady_compiled",), "steady_eager", rounding="2 decimals")
CONTROL = Ask("ratio", ("steady_control",), "steady_eager", rounding="2 decimals")


def marks(gathered: Gathered, spec: dict) -> dict[str, Number]:
    """Sweep and steady state of every policy, by `policy/cache/what`; of eager the sweep and A/A control.

    The steady state is that of the cold processes, for the warm ones run the same binaries.
    """
    case = spec["cases"][0]
    found = {}
    cells = [record.cell for record in gathered.records]
    for policy, cache in dict.fromkeys((cell.policy, cell.cache) for cell in cells):
        where = Where(policy, cache, case)
        eager = cache == "none"
        found[f"{policy}/{cache}/sweep"] = find(gathered, EAGER_SWEEP if eager else SWEEP, where)
        steady = where if eager else Where(policy, "cold", case)
        found[f"{policy}/{cache}/steady"] = find(gathered, CONTROL if eager else RATIO, steady)
    return found


def paint(figure: Figure, marks: dict[str, Number], spec: dict, noise: dict) -> None:
    """One mark per policy and cache state, joined by policy, against eager's line."""
    axes = figure.add_subplot()
    axes.set_xscale("log")
    corners = list(dict.fromkeys(tuple(name.split("/")[:2]) for name in marks))
    points = {
        (policy, cache): (marks[f"{policy}/{cache}/sweep"], marks[f"{policy}/{cache}/steady"])
        for policy, cache in corners
    }
    remarks = [
        f"{policy}, {cache}: {next(number.head for number in pair if not number.facts)}"
        for (policy, cache), pair in points.items()
        if not all(number.facts for number in pair)
    ]
    if any(steady.facts and steady.low is None for _, steady in points.values()):
        remarks.append("too few processes for intervals: no difference is resolved")
    compiled = list(dict.fromkeys(policy for policy, cache in points if cache != "none"))
    _eager(axes, points, noise)
    wanted = []
    for policy, shape, colour in zip(compiled, SHAPES, COLOURS, strict=False):
        wanted += _policy(axes, policy, points, shape, colour)
    _axes(axes, remarks)
    labels.settle(figure)
    labels.place(axes, wanted, _taken(axes, points))


def _eager(axes: Axes, points: dict, noise: dict) -> None:
    axes.axhline(1, color="black", linewidth=0.9, zorder=2)
    low, high = 1 / (1 + noise["practical_threshold"]), 1 + noise["practical_threshold"]
    for (_, cache), (sweep, control) in points.items():
        if cache != "none" or not (sweep.facts and control.facts):
            continue
        if control.low is not None:
            told = statistics.Interval(control.value, control.low, control.high, control.processes)
            low, high = statistics.band(told, noise["practical_threshold"])
        axes.plot(sweep.value, 1, "|", color="black", markersize=9, markeredgewidth=1.6, zorder=4)
        above = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center", "va": "bottom"}
        axes.annotate("eager", (sweep.value, 1), **above)
    axes.axhspan(low, high, color=BAND, linewidth=0, zorder=0)


def _policy(axes: Axes, policy: str, points: dict, shape: str, colour: str) -> list[labels.Label]:
    """Draw a policy's marks; returns the label it wants, at the cold one if there is one."""
    drawn = []
    for cache, face in (("cold", colour), ("warm", "white")):
        sweep, steady = points.get((policy, cache), (None, None))
        if not (sweep and sweep.facts and steady.facts):
            continue
        if steady.low is not None:
            axes.plot([sweep.value] * 2, [steady.low, steady.high], color=colour, linewidth=1.2, zorder=3)
        if sweep.low is not None:
            axes.plot([sweep.low, sweep.high], [steady.value] * 2, color=colour, linewidth=1.2, zorder=3)
        drawn.append((sweep.value, steady.value))
        axes.plot(*drawn[-1], shape, color=colour, markerfacecolor=face, markersize=6, zorder=5)
    if not drawn:
        return []
    axes.plot(*zip(*drawn, strict=True), color=colour, linewidth=0.7, linestyle=":", zorder=2)
    # Text needs more contrast than a mark.
    return [(policy, *drawn[0], tuple(0.65 * part for part in to_rgb(colour)))]


def _axes(axes: Axes, remarks: list[str]) -> None:
    axes.set_xlabel("seconds to serve the stream once, compilation included (log scale)")
    axes.set_ylabel("steady state relative to eager\n(less than 1: faster)")
    axes.xaxis.set_major_locator(LogLocator(10))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g} s"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(0.1, 0.18)
    handles = [
        Line2D([], [], linestyle="", marker="o", color="black", label="cold cache"),
        Line2D([], [], linestyle="", marker="o", color="black", markerfacecolor="white", label="warm cache"),
        Rectangle((0, 0), 1, 1, color=BAND, linewidth=0, label="no resolved difference from eager"),
    ]
    axes.figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    if remarks:
        axes.annotate("\n".join(remarks), (0.01, 0.98), xycoords="axes fraction", va="top", fontsize=7)


def _taken(axes: Axes, points: dict) -> list:
    """What a label may not cover: marks, their intervals, the lines that join them, and eager's."""
    boxes = labels.along(axes, axes.get_xlim(), [1, 1])
    joined: dict[str, list[tuple[float, float]]] = {}
    for (policy, _), (sweep, steady) in points.items():
        if not (sweep.facts and steady.facts):
            continue
        joined.setdefault(policy, []).append((sweep.value, steady.value))
        boxes.append(labels.around(axes, sweep.value, steady.value))
        if steady.low is not None:
            boxes += labels.along(axes, [sweep.value] * 2, [steady.low, steady.high])
        if sweep.low is not None:
            boxes += labels.along(axes, [sweep.low, sweep.high], [steady.value] * 2)
    for ends in joined.values():
        boxes += labels.along(axes, *zip(*ends, strict=True)) if len(ends) == 2 else []
    renderer = axes.figure.canvas.get_renderer()
    return [*boxes, *(text.get_window_extent(renderer) for text in axes.texts)]
