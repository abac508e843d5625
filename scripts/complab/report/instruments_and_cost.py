"""Kind `instruments-and-cost`: do the instruments agree on each case, and what does it cost at run time?"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from complab.report import relative_cost
from complab.report.gather import Gathered
from complab.report.number import Ask, Number
from complab.report.selection import Where, find

HEIGHT = 2.7
BROKEN, WHOLE = "#F5D9C0", "white"
INSTRUMENTS = {
    "explain": (Ask("count", ("explain_graphs",)), Ask("count", ("explain_breaks",))),
    "log": (Ask("count", ("log_breaks",)),),
    "fullgraph": (Ask("flag", ("fullgraph_accepts",)),),
}
# A warm cell is not probed.
CACHES = {"explain": "cold", "log": "any", "fullgraph": "cold"}
STEADY = {
    "ratio": relative_cost.RATIO,
    "verdict": relative_cost.VERDICT,
    "control": relative_cost.CONTROL,
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
    axes.set_xlabel("steady state relative to eager\n(less than 1: faster than eager)")
    told = [{what: marks[f"{case}/{what}"] for what in STEADY} for case in cases]
    handles = relative_cost.draw_rows(axes, told, noise)
    for row, numbers in enumerate(told):
        _say(axes, row, numbers)
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.03, 1), ncols=2, borderpad=0, fontsize=7
    )


def _say(axes: Axes, row: int, told: dict[str, Number]) -> None:
    """A row's ratio and what it amounts to, or why there is none."""
    ratio = told["ratio"]
    y, text = (row - 0.32, f"{ratio.text}, {told['verdict'].head}") if ratio.facts else (row, ratio.head)
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    middle = {"ha": "center", "va": "center", "transform": axes.get_yaxis_transform()}
    axes.text(0.5, y, text, bbox=clear, zorder=6, **middle)
