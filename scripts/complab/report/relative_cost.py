"""Kind `relative-cost`: what does each policy cost once compiled, relative to eager?"""

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from complab.report import statistics
from complab.report.gather import Gathered
from complab.report.number import Ask, Number
from complab.report.selection import Where, find

HEIGHT = 2.6
INK, BAND = "#0072B2", "#DDDDDD"
SINGLE = {"linestyle": "", "marker": ".", "color": INK, "alpha": 0.45, "markeredgewidth": 0}
RATIO = Ask("ratio", ("steady_compiled",), "steady_eager", rounding="2 decimals")
CONTROL = Ask("ratio", ("steady_control",), "steady_eager", rounding="2 decimals")
VERDICT = Ask("verdict", ("steady_compiled",), "steady_eager")
CONTROL_VERDICT = Ask("verdict", ("steady_control",), "steady_eager")


def marks(gathered: Gathered, spec: dict) -> dict[str, Number]:
    """Ratio, verdict and A/A control by `policy/what`; a policy that compiles nothing has its control only.

    Cold processes only: a warm one runs the same binaries, so it is no independent sample.
    """
    case = spec["cases"][0]
    caches = {record.cell.policy: record.cell.cache for record in gathered.records}
    found = {}
    for policy in spec["policies"] or caches:
        eager = caches.get(policy) == "none"
        where = Where(policy, "none" if eager else "cold", case)
        found[f"{policy}/ratio"] = find(gathered, CONTROL if eager else RATIO, where)
        found[f"{policy}/verdict"] = find(gathered, CONTROL_VERDICT if eager else VERDICT, where)
        found[f"{policy}/control"] = find(gathered, CONTROL, where)
    return found


def paint(figure: Figure, marks: dict[str, Number], spec: dict, noise: dict) -> None:
    """One row per policy: ratio with its interval, single processes, and the band of no difference."""
    axes = figure.add_subplot()
    policies = list(dict.fromkeys(name.split("/")[0] for name in marks))
    axes.set_yticks(range(len(policies)), policies)
    axes.set_ylim(len(policies) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.tick_params(left=False)
    rows = [
        {what: marks[f"{policy}/{what}"] for what in ("ratio", "verdict", "control")} for policy in policies
    ]
    handles = draw_rows(axes, rows, noise)
    # A second axis, so that no mark can be under a number.
    numbers = axes.secondary_yaxis("right")
    numbers.set_yticks(range(len(policies)), [_text(told) for told in rows])
    numbers.spines["right"].set_visible(False)
    numbers.tick_params(right=False)
    axes.set_xlabel("steady state relative to eager (less than 1: faster than eager)")
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))


def draw_rows(axes: Axes, rows: list[dict[str, Number]], noise: dict) -> list[Artist]:
    """Draw ratio and band of each row that has them, from the top; returns the legend's handles."""
    axes.axvline(1, color="black", linewidth=0.9, zorder=2)
    drawn = [1.0]
    for row, told in enumerate(rows):
        drawn += _row(axes, row, told, noise) if told["ratio"].facts else []
    room = max(0.15 * (max(drawn) - min(drawn)), 0.05)
    axes.set_xlim(min(drawn) - room, max(drawn) + room)
    handles = [Rectangle((0, 0), 1, 1, color=BAND, linewidth=0, label="no resolved difference")]
    several = any(len(told["ratio"].samples) > 1 for told in rows)
    return [*handles, Line2D([], [], label="single process", **SINGLE)] if several else handles


def _row(axes: Axes, row: int, told: dict[str, Number], noise: dict) -> list[float]:
    """Draw one row; returns every number that must fit into the axes."""
    ratio = told["ratio"]
    low, high = _band(told["control"], noise)
    axes.add_patch(Rectangle((low, row - 0.15), high - low, 0.45, color=BAND, linewidth=0, zorder=1))
    drawn = [*ratio.samples, low, high]
    if ratio.low is not None:
        ends = [ratio.low, ratio.high]
        axes.plot(ends, [row, row], "|-", color=INK, linewidth=1.3, markersize=7, zorder=4)
        drawn += ends
    if len(ratio.samples) > 1:
        axes.plot(ratio.samples, [row + 0.2] * len(ratio.samples), markersize=4.5, zorder=3, **SINGLE)
    axes.plot(ratio.value, row, "o", color=INK, markersize=4, zorder=5)
    return drawn


def _band(control: Number, noise: dict) -> tuple[float, float]:
    """Ratios that count as no difference."""
    if control.low is None:
        width = 1 + noise["practical_threshold"]
        return 1 / width, width
    told = statistics.Interval(control.value, control.low, control.high, control.processes)
    return statistics.band(told, noise["practical_threshold"])


def _text(told: dict[str, Number]) -> str:
    """A policy's ratio and what it amounts to, or why there is none."""
    ratio = told["ratio"]
    return f"{ratio.text}\n{told['verdict'].head}" if ratio.facts else ratio.head
