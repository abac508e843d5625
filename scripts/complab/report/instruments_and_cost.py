"""Kind `instruments-and-cost`: do the instruments agree on each case, and what does it cost at run time?"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from complab.report import statistics
from complab.report.gather import Gathered
from complab.report.number import Ask, Number
from complab.report.selection import Where, find

HEIGHT = 2.7
BROKEN, WHOLE = "#F5D9C0", "white"
INK, BAND = "#0072B2", "#DDDDDD"
SINGLE = {"linestyle": "", "marker": ".", "color": INK, "alpha": 0.45, "markeredgewidth": 0}
INSTRUMENTS = {
    "explain": (Ask("count", ("explain_graphs",)), Ask("count", ("explain_breaks",))),
    "log": (Ask("count", ("log_breaks",)),),
    "fullgraph": (Ask("flag", ("fullgraph_accepts",)),),
}
# A warm cell is not probed.
CACHES = {"explain": "cold", "log": "any", "fullgraph": "cold"}
STEADY = {
    "ratio": Ask("ratio", ("steady_compiled",), "steady_eager", rounding="2 decimals"),
    "verdict": Ask("verdict", ("steady_compiled",), "steady_eager"),
    "control": Ask("ratio", ("steady_control",), "steady_eager", rounding="2 decimals"),
}


def marks(gathered: Gathered, spec: dict) -> dict[str, Number]:
    """What each instrument says of each case, and its steady state, by `case/what`."""
    found = {}
    for case in spec["cases"]:
        for instrument, asks in INSTRUMENTS.items():
            where = Where(case=case, cache=CACHES[instrument])
            for ask in asks:
                found[f"{case}/{instrument}/{ask.of[0]}"] = find(gathered, ask, where)
        for what, ask in STEADY.items():
            found[f"{case}/{what}"] = find(gathered, ask, Where(case=case, cache="cold"))
    return found


def paint(figure: Figure, marks: dict[str, Number], spec: dict, noise: dict) -> None:
    """Instruments on the left, steady state on the right, one row per case through both."""
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1.2, 1])
    cases = spec["cases"]
    left.set_yticks(range(len(cases)), [case.replace("_", " ") for case in cases])
    left.set_ylim(len(cases) - 0.5, -0.5)
    _matrix(left, marks, cases)
    _steady(right, marks, cases, noise)


def _matrix(axes: Axes, marks: dict[str, Number], cases: list[str]) -> None:
    axes.set_title("What each instrument says", pad=16)
    axes.set_xlim(-0.5, len(INSTRUMENTS) - 0.5)
    axes.set_xticks(range(len(INSTRUMENTS)), list(INSTRUMENTS))
    axes.tick_params(length=0, labeltop=True, labelbottom=False, top=False, bottom=False)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for row, case in enumerate(cases):
        for column, instrument in enumerate(INSTRUMENTS):
            text, broken = _finding(marks, case, instrument)
            look = {"facecolor": BROKEN if broken else WHOLE, "edgecolor": "#808080", "linewidth": 0.6}
            axes.add_patch(Rectangle((column - 0.48, row - 0.45), 0.96, 0.9, **look))
            axes.text(column, row, text, ha="center", va="center", fontweight="bold" if broken else "normal")


def _finding(marks: dict[str, Number], case: str, instrument: str) -> tuple[str, bool]:
    """What an instrument says in words, and whether that is a break."""
    if instrument == "explain":
        graphs, breaks = marks[f"{case}/explain/explain_graphs"], marks[f"{case}/explain/explain_breaks"]
        return f"{_plural(graphs, 'graph')}\n{_plural(breaks, 'break')}", _broken(breaks)
    if instrument == "log":
        breaks = marks[f"{case}/log/log_breaks"]
        return _plural(breaks, "break"), _broken(breaks)
    accepts = marks[f"{case}/fullgraph/fullgraph_accepts"]
    return {"yes": "accepts", "no": "rejects"}.get(accepts.head, accepts.head), accepts.head == "no"


def _broken(breaks: Number) -> bool:
    return bool(breaks.facts) and breaks.head != "0"


def _plural(number: Number, noun: str) -> str:
    if not number.facts:
        return number.head
    return f"{number.head} {noun}{'' if number.head == '1' else 's'}"


def _steady(axes: Axes, marks: dict[str, Number], cases: list[str], noise: dict) -> None:
    axes.set_title("What it costs once compiled", pad=16)
    axes.tick_params(left=False, labelleft=False)
    axes.spines["left"].set_visible(False)
    axes.grid(False, axis="y")
    axes.axvline(1, color="black", linewidth=0.9, zorder=2)
    axes.set_xlabel("steady state relative to eager\n(less than 1: faster than eager)")
    drawn = []
    for row, case in enumerate(cases):
        ratio, control = marks[f"{case}/ratio"], marks[f"{case}/control"]
        if not ratio.facts:
            _say(axes, row, ratio.head)
            continue
        drawn += [*ratio.samples, ratio.low or ratio.value, ratio.high or ratio.value]
        drawn += _band(axes, row, control, noise)
        if ratio.low is not None:
            ends = [ratio.low, ratio.high]
            axes.plot(ends, [row, row], "|-", color=INK, linewidth=1.3, markersize=7, zorder=4)
        if len(ratio.samples) > 1:
            beside = [row + 0.2] * len(ratio.samples)
            axes.plot(ratio.samples, beside, markersize=4.5, zorder=3, **SINGLE)
        axes.plot(ratio.value, row, "o", color=INK, markersize=4, zorder=5)
        _say(axes, row - 0.32, f"{ratio.text}, {marks[f'{case}/verdict'].head}")
    _scale(axes, drawn)
    handles = [Rectangle((0, 0), 1, 1, color=BAND, linewidth=0, label="no resolved difference")]
    if any(len(marks[f"{case}/ratio"].samples) > 1 for case in cases):
        handles.append(Line2D([], [], label="single process", **SINGLE))
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.03, 1), ncols=2, borderpad=0, fontsize=7
    )


def _say(axes: Axes, y: float, text: str) -> None:
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    middle = {"ha": "center", "va": "center", "transform": axes.get_yaxis_transform()}
    axes.text(0.5, y, text, bbox=clear, zorder=6, **middle)


def _band(axes: Axes, row: int, control: Number, noise: dict) -> list[float]:
    """Shade the ratios that count as no difference; returns their ends."""
    low, high = 1 / (1 + noise["practical_threshold"]), 1 + noise["practical_threshold"]
    if control.low is not None:
        told = statistics.Interval(control.value, control.low, control.high, control.processes)
        low, high = statistics.band(told, noise["practical_threshold"])
    axes.add_patch(Rectangle((low, row - 0.15), high - low, 0.45, color=BAND, linewidth=0, zorder=1))
    return [low, high]


def _scale(axes: Axes, drawn: list[float]) -> None:
    """Limits with room around what is drawn and around 1."""
    low, high = min([*drawn, 1]), max([*drawn, 1])
    room = max(0.15 * (high - low), 0.05)
    axes.set_xlim(low - room, high + room)
