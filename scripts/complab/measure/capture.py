"""What did Dynamo capture, and what did it say about it?"""

import ast
import contextlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from complab.measure import dynamo

COMPILED_REGION = "Torch-Compiled Region"


def hard_reset() -> None:
    """Forget this process's compiled variants, counters and metrics. Disk caches stay as they are."""
    dynamo.reset()


@contextlib.contextmanager
def capture_logs(**categories: bool):
    """Turn TORCH_LOGS categories on and collect what torch's own handlers print.

    Yields a text buffer; `buffer.tell()` before and `getvalue()[tell:]` after a call give that
    call's lines. Warnings of the compiler (the recompile limit among them) are collected as well.
    """
    buffer = io.StringIO()
    dynamo.set_logs(**categories)
    for handler in dynamo.log_streams():
        handler.setStream(buffer)
    try:
        yield buffer
    finally:
        for handler in dynamo.log_streams():
            handler.setStream(sys.stderr)
        dynamo.set_logs()


@contextlib.contextmanager
def redirected_logs():
    """Collect what torch's own handlers print, under whatever TORCH_LOGS says; yields a text buffer."""
    buffer = io.StringIO()
    for handler in dynamo.log_streams():
        handler.setStream(buffer)
    yield buffer


@contextlib.contextmanager
def entered_regions():
    """Collect the names of the compiled regions that the enclosed calls enter, whatever their backend.

    Yields a list, filled when the block ends. Told by torch's profiler, so nothing inside is to be timed.
    """
    entered: list[str] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield entered
    entered += [event.name for event in profile.events() if event.name.startswith(COMPILED_REGION)]


@dataclass(frozen=True)
class Explanation:
    """Dynamo's explanation of one call: graphs, breaks, ops, and the first line of each reason."""

    graphs: int
    breaks: int
    ops: int
    reasons: tuple[str, ...]
    places: tuple[str, ...]


def explain_summary(function, *arguments) -> Explanation:
    """What `torch._dynamo.explain` says of one call.

    It resets Dynamo before and after and really runs the function, so it needs a process of its own.
    A call in which nothing was captured is told as 0 graphs and 0 breaks (explain itself says -1).
    """
    told = dynamo.explain(function, *arguments)
    reasons, places = [], []
    for item in told.break_reasons:
        reasons.append(str(item.reason).strip().splitlines()[0])
        frame = item.user_stack[-1] if item.user_stack else None
        places.append(f"{frame.filename}:{frame.lineno}: {(frame.line or '').strip()}" if frame else "")
    return Explanation(
        told.graph_count, max(told.graph_break_count, 0), told.op_count, tuple(reasons), tuple(places)
    )


@dataclass(frozen=True)
class FullgraphOutcome:
    """Whether one call could be captured as one graph, and the refusal if not."""

    accepts: bool
    error: str
    message: str


def fullgraph_outcome(function, *arguments, **compile_options) -> FullgraphOutcome:
    """Compile one call with ``fullgraph=True`` and the capture-only backend, and see whether it raises.

    The question is capture, which Dynamo decides before any backend runs. Since 2.10 fullgraph also
    captures scalars, so its answer is about fullgraph, not about the default call.
    """
    hard_reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager", **compile_options)
    try:
        compiled(*arguments)
    except Exception as refusal:
        lines = [line for line in str(refusal).splitlines() if line.strip()]
        return FullgraphOutcome(False, type(refusal).__name__, lines[0] if lines else "")
    return FullgraphOutcome(True, "", "")


_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<name>\w+)_at_(?P<line>\d+)")
_ANOTHER = "another graph break occurred: ***"


def name_of(frame: dynamo.Frame) -> str:
    """A frame as a person would call it: `forward of CausalBlock [1/0]`."""
    resumed = _RESUMED.fullmatch(frame.name)
    name = resumed["name"] if resumed else frame.name
    holder = _class_around(frame.file, frame.line)
    told = f"{name} of {holder}" if holder else name
    return (
        f"{told} resumed at line {resumed['line']} [{frame.compile_id}]"
        if resumed
        else f"{told} [{frame.compile_id}]"
    )


def reason_of(frame: dynamo.Frame) -> str:
    """Why Dynamo kept nothing of a frame, in one line; the last reason decides where one led to another."""
    lines = [line for line in frame.reason.rpartition(_ANOTHER)[2].splitlines() if line.strip()]
    return lines[0].strip() if lines else f"reason not reported by torch {torch.__version__}"


def _class_around(file: str, line: int) -> str:
    """Name of the innermost class whose source holds this line, empty if there is none."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ""
    classes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.lineno <= line <= node.end_lineno
    ]
    return max(classes, key=lambda node: node.lineno).name if classes else ""
