"""What did each call of the stream cost, and what happened to it? The picture of a diagnosis."""

import io

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from complab.report import call_stream, labels
from complab.report.figures import STYLE, WIDTH

HEIGHT = 2.6
# Where a later call found nothing compiled at all.
NOTHING = ("v", "white", "#505050")
RAISED = ("P", "#B00020", "#B00020")


def draw(told: dict) -> dict[str, bytes]:
    """The picture's files by name ending; a plain notice where no compiled call was made."""
    calls = told["stream"]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rc_file(STYLE)
        figure = Figure(figsize=(WIDTH, HEIGHT))
        FigureCanvasAgg(figure)
        if calls:
            _paint(figure, calls)
            labels.settle(figure)
        else:
            figure.text(0.5, 0.5, "no compiled call was made", ha="center", va="center", color="#505050")
        return _files(figure, told)


def _paint(figure: Figure, calls: list[dict]) -> None:
    axes = figure.add_subplot()
    numbers = [each["call"] for each in calls]
    # One point makes no line.
    alone = "_" if len(calls) == 1 else None
    eager = [each["eager_s"] * 1e3 for each in calls]
    axes.plot(numbers, eager, color="#808080", linewidth=0.9, marker=alone, zorder=2)
    last = calls[-1]
    at = (last["call"], last["eager_s"] * 1e3)
    beside = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
    axes.annotate("eager", at, **beside, fontsize=7, color="#505050")
    seen: dict[str, tuple] = {}
    for each in calls:
        shape, face, edge = seen.setdefault(each["fate"], _mark(each["fate"]))
        axes.plot(
            each["call"],
            each["compiled_s"] * 1e3,
            shape,
            markerfacecolor=face,
            markeredgecolor=edge,
            zorder=4,
        )
    call_stream.duration_axis(axes)
    axes.set_xlim(-0.7, last["call"] + 1 + len(calls) * 0.08)
    ticks = MaxNLocator(integer=True).tick_values(0, last["call"])
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= last["call"]])
    axes.set_xlabel("call, counted from 0")
    axes.set_ylabel("latency")
    axes.grid(False, axis="x")
    handles = [
        Line2D([], [], linestyle="", marker=shape, markerfacecolor=face, markeredgecolor=edge, label=fate)
        for fate, (shape, face, edge) in seen.items()
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))


def _mark(fate: str) -> tuple[str, str, str]:
    return {**call_stream.FATES, "raised": RAISED}.get(fate, NOTHING)


def _files(figure: Figure, told: dict) -> dict[str, bytes]:
    title = f"{told['subject']['name']}: what each call cost"
    metadata = {
        "pdf": {"Title": title, "CreationDate": None},
        "svg": {"Title": title, "Date": None},
        "png": {"Title": title},
    }
    files = {}
    for kind, about in metadata.items():
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata=about)
        files[kind] = content.getvalue()
    return files
