"""Kind `call-stream`: what did each request of the stream cost, and what happened to it?"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from complab.report.gather import Gathered
from complab.report.number import Ask, Number
from complab.report.selection import Where, find

HEIGHT = 4.3

# Shape, face and edge of each fate, as the evidence words it. The shapes alone tell them apart in grey.
FATES = {
    "new variant": ("^", "#D55E00", "#D55E00"),
    "reuse": ("o", "white", "#0072B2"),
    "refused attempt": ("X", "black", "black"),
    "eager after the limit": ("s", "#E69F00", "#7A5200"),
    "frame skipped": ("D", "#CC79A7", "#7A3A5E"),
}
# Processes that do not agree on a fate get a shape of their own, never one of the two.
UNCLEAR = ("*", "white", "black")
SINGLE = {"linestyle": "", "marker": ".", "alpha": 0.35, "markeredgewidth": 0}
SECONDS = Ask("median", ("compiled_time",), unit="ms", rounding="3 significant")
EAGER = Ask("median", ("eager_time",), unit="ms", rounding="3 significant")
LENGTH = Ask("count", ("sequence_length",))
FATE = Ask("fate")


def marks(gathered: Gathered, spec: dict) -> dict[str, Number]:
    """The length, latencies and fate of every request, by `policy/cache/request/what`."""
    case = spec["cases"][0]
    requests = range(len(gathered.provenance["config"]["settings"]["lengths"]))
    cells = [record.cell for record in gathered.records if record.cell.cache != "none"]
    # The stream is the same for all: it is part of the configuration that they may not differ in.
    policy = cells[0].policy
    found = {
        f"requests/{request}/length": find(gathered, LENGTH, Where(policy, case=case, call=request))
        for request in requests
    }
    for policy, cache in dict.fromkeys((cell.policy, cell.cache) for cell in cells):
        for request in requests:
            where = Where(policy, cache, case, request)
            for what, ask in (("latency", SECONDS), ("eager", EAGER), ("fate", FATE)):
                found[f"{policy}/{cache}/{request}/{what}"] = find(gathered, ask, where)
    return found


def paint(figure: Figure, marks: dict[str, Number], spec: dict, noise: dict) -> None:
    """One panel per policy and cache state, on common axes."""
    streams = [name for name in marks if not name.startswith("requests/")]
    panels = list(dict.fromkeys(tuple(name.split("/")[:2]) for name in streams))
    policies = list(dict.fromkeys(policy for policy, _ in panels))
    caches = list(dict.fromkeys(cache for _, cache in panels))
    grid = figure.subplots(len(policies), len(caches), sharex=True, sharey=True, squeeze=False)
    lengths = [number for name, number in marks.items() if name.startswith("requests/")]
    seen: dict[str, None] = {}
    for line, policy in zip(grid, policies, strict=True):
        for axes, cache in zip(line, caches, strict=True):
            axes.set_title(f"{policy}, {cache} cache")
            chosen = [
                {what: marks[f"{policy}/{cache}/{request}/{what}"] for what in ("latency", "eager", "fate")}
                for request in range(len(lengths))
                if (policy, cache) in panels
            ]
            seen |= dict.fromkeys(_panel(axes, chosen))
    _axes(grid, lengths)
    several = any(len(number.samples) > 1 for name, number in marks.items() if name.endswith("/latency"))
    _legend(figure, [fate for fate in (*FATES, "processes differ") if fate in seen], several)


def _panel(axes: Axes, requests: list[dict[str, Number]]) -> list[str]:
    """Draw one stream; returns the fates that occur."""
    eager = [(x, request["eager"]) for x, request in enumerate(requests) if request["eager"].facts]
    seconds = [number.value for _, number in eager]
    axes.plot([x for x, _ in eager], seconds, color="#808080", linewidth=0.9, zorder=2)
    if eager:
        at = (eager[-1][0] + 0.6, eager[-1][1].value)
        axes.annotate("eager", at, va="center", fontsize=7, color="#505050")
    fates = []
    if requests and not any(request["latency"].facts for request in requests):
        axes.text(0.5, 0.5, requests[0]["latency"].head, transform=axes.transAxes, ha="center", va="center")
        return fates
    for x, request in enumerate(requests):
        latency, fate = request["latency"], request["fate"]
        if not latency.facts:
            middle = {"va": "center", "ha": "center", "rotation": 90}
            axes.text(x, 0.5, latency.head, transform=axes.get_xaxis_transform(), **middle)
            continue
        known = fate.head in FATES
        shape, face, edge = FATES.get(fate.head, UNCLEAR)
        fates.append(fate.head if known else "processes differ")
        if len(latency.samples) > 1:
            # Beside the median, which would hide them.
            beside = [x + 0.34] * len(latency.samples)
            axes.plot(beside, latency.samples, color=edge, markersize=3, zorder=3, **SINGLE)
        axes.plot(x, latency.value, shape, markerfacecolor=face, markeredgecolor=edge, zorder=4)
        if fate.head == "refused attempt":
            _limit(axes, x)
    return fates


def _limit(axes: Axes, x: int) -> None:
    axes.axvline(x, color="black", linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    axes.annotate(
        "recompile limit",
        (x, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(3, -2),
        textcoords="offset points",
        va="top",
        fontsize=7,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )


def _axes(grid, lengths: list[Number]) -> None:
    axes = grid[0][0]
    duration_axis(axes)
    axes.set_xlim(-0.7, len(lengths) + 1.3)
    axes.set_xticks(range(len(lengths)), [f"{x}\n{number.head}" for x, number in enumerate(lengths)])
    axes.figure.supxlabel("request, counted from 0, and below it its length in tokens", fontsize=8)
    for axes in grid.flat:
        axes.grid(False, axis="x")
    for axes in grid[:, 0]:
        axes.set_ylabel("latency")


def duration_axis(axes: Axes) -> None:
    """A logarithmic axis for milliseconds that is labelled in seconds, milliseconds and microseconds."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_major_formatter(FuncFormatter(_duration))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _duration(milliseconds: float, _position: int) -> str:
    for unit, size in (("s", 1000), ("ms", 1)):
        if milliseconds >= size * 0.999:
            return f"{milliseconds / size:g} {unit}"
    return f"{milliseconds * 1000:g} µs"


def _legend(figure: Figure, fates: list[str], several: bool) -> None:
    handles = []
    for fate in fates:
        shape, face, edge = FATES.get(fate, UNCLEAR)
        handles.append(
            Line2D([], [], linestyle="", marker=shape, markerfacecolor=face, markeredgecolor=edge, label=fate)
        )
    if several:
        handles.append(Line2D([], [], color="black", label="single process", **SINGLE))
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
