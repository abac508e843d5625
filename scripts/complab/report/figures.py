"""How do numbers become a picture that is the same to the byte whenever it is drawn from the same evidence?

Chooses the drawing by its kind, keeps style and metadata free of dates and personal settings, and draws
a plain notice in place of a picture when a cell of the exhibit failed.
"""

import base64
import io
import re
import textwrap

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from complab.config import PROJECT, Settings
from complab.report import (
    call_stream,
    cost_against_steady,
    cumulative_time,
    instruments_and_cost,
    labels,
    names,
    relative_cost,
    tables,
)
from complab.report.gather import Gathered
from complab.report.number import Number

STYLE = PROJECT / "figures" / "complab.mplstyle"
KINDS = {
    "call-stream": call_stream,
    "instruments-and-cost": instruments_and_cost,
    "cost-against-steady": cost_against_steady,
    "cumulative-time": cumulative_time,
    "relative-cost": relative_cost,
}
WIDTH = 6.3


def draw(gathered: Gathered, settings: Settings) -> tuple[dict[str, Number], dict[str, bytes]]:
    """The numbers behind every mark, by name, and the picture's files by name."""
    spec = settings.experiment(gathered.experiment)["exhibit"]["figure"]
    kind = KINDS[spec["kind"]]
    with matplotlib.rc_context():
        # A reader's own matplotlibrc may not change the picture.
        matplotlib.rcdefaults()
        matplotlib.rc_file(STYLE)
        figure = Figure(figsize=(WIDTH, kind.HEIGHT))
        FigureCanvasAgg(figure)
        marks = {} if gathered.failed else kind.marks(gathered, spec)
        if gathered.failed:
            _notice(figure, gathered)
        else:
            kind.paint(figure, marks, spec, gathered.noise)
        labels.settle(figure)
        return marks, _files(figure, gathered)


def _notice(figure: Figure, gathered: Gathered) -> None:
    """Nothing but a frame that says what failed: a picture of the rest would be taken for the whole."""
    axes = figure.add_subplot()
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=1.2)
    axes.text(0.03, 0.93, f"{gathered.title}: not drawn", transform=axes.transAxes, va="top", weight="bold")
    lines = ["", f"{tables.counts(gathered)}.", ""]
    shown = tables.failures(gathered)[:6]
    for line in shown:
        lines += textwrap.wrap(line, 100, subsequent_indent="    ")
    hidden = len(gathered.failed) + len(gathered.indeterminate) - len(shown)
    lines += [f"and {hidden} more"] if hidden > 0 else []
    axes.text(0.03, 0.93, "\n".join(lines), transform=axes.transAxes, va="top", linespacing=1.5)


def _files(figure: Figure, gathered: Gathered) -> dict[str, bytes]:
    title = f"{gathered.title} ({gathered.run})"
    evidence = f"evidence sha256 {gathered.digest}"
    metadata = {
        "pdf": {"Title": title, "Subject": evidence, "Keywords": gathered.digest, "CreationDate": None},
        "svg": {"Title": title, "Description": evidence, "Keywords": [gathered.digest], "Date": None},
        "png": {"Title": title, "Description": evidence, "Evidence": gathered.digest},
    }
    files = {}
    for kind in names.FIGURE_FORMATS:
        picture = io.BytesIO()
        figure.savefig(picture, format=kind, metadata=metadata[kind])
        files[f"{gathered.experiment}.{kind}"] = picture.getvalue()
    return files


def embedded(svg: bytes) -> dict:
    """A picture as an element of a page has it: its whole content as the source, and its size in pixels."""
    width, height = size_in_pixels(svg)
    source = "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")
    return {"source": source, "width": width, "height": height}


def size_in_pixels(svg: bytes) -> tuple[int, int]:
    """Width and height in CSS pixels, so that nothing moves while the page is read."""
    told = re.search(rb'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg)
    width, height = (float(part) for part in told.groups()) if told else (453.6, 252.0)
    return round(width * 4 / 3), round(height * 4 / 3)
