"""Where can a label stand so that it hides nothing? Tries places around its mark, nearest first."""

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from matplotlib.typing import ColorType

# Offsets in points with the alignment that keeps the text clear of the mark.
PLACES = [
    (distance * x, distance * y, horizontal, vertical)
    for distance in (7, 12, 18, 26)
    for x, y, horizontal, vertical in (
        (1, 0, "left", "center"),
        (0, 1, "center", "bottom"),
        (0, -1, "center", "top"),
        (-1, 0, "right", "center"),
        (0.8, 0.8, "left", "bottom"),
        (0.8, -0.8, "left", "top"),
        (-0.8, 0.8, "right", "bottom"),
        (-0.8, -0.8, "right", "top"),
    )
]


# Text, x and y of its mark in data coordinates, colour.
Label = tuple[str, float, float, ColorType]


def settle(figure: Figure) -> None:
    """Fix the layout: from here on pixels mean something, and every format gets the same one."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def place(axes: Axes, wanted: Sequence[Label], taken: Iterable[Bbox]) -> None:
    """Write each label near its mark, clear of ``taken`` (in pixels), of the others, inside the axes.

    The layout must be settled. If every place is taken the last one is used: a label is never left out.
    """
    figure = axes.figure
    renderer = figure.canvas.get_renderer()
    occupied = list(taken)
    inside = axes.get_window_extent(renderer)
    for text, x, y, color in wanted:
        label = axes.annotate(text, (x, y), textcoords="offset points", xytext=(0, 0), color=color)
        for dx, dy, horizontal, vertical in PLACES:
            label.set(position=(dx, dy), horizontalalignment=horizontal, verticalalignment=vertical)
            box = label.get_window_extent(renderer)
            within = (
                inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            )
            if within and not any(box.overlaps(other) for other in occupied):
                break
        occupied.append(label.get_window_extent(renderer))


def around(axes: Axes, x: float, y: float, points: float = 4) -> Bbox:
    """The square in pixels that a mark of this half size, in points, takes."""
    centre = axes.transData.transform((x, y))
    half = points * axes.figure.dpi / 72
    return Bbox([centre - half, centre + half])


def along(axes: Axes, x: Sequence[float], y: Sequence[float], points: float = 1.5) -> list[Bbox]:
    """Boxes in pixels that cover a straight line between two points."""
    first, last = axes.transData.transform(list(zip(x, y, strict=True)))
    half = points * axes.figure.dpi / 72
    steps = int(max(abs(last - first)) // (2 * half)) + 1
    centres = [first + (last - first) * step / steps for step in range(steps + 1)]
    return [Bbox([centre - half, centre + half]) for centre in centres]
