"""Where exactly does capture fail: which lines run how often, and which submodule alone still breaks?"""

import contextlib
import sys
from collections.abc import Callable, Iterator

import torch

from complab.measure import dynamo, failure, passes


def line_counts(model: Callable, arguments: tuple, lines: list[list]) -> list[list]:
    """How often each (file, line) runs in one eager call: a break in a loop costs as often as it runs."""
    wanted = {(file, line): 0 for file, line in lines}
    files = {file for file, _ in wanted}

    def of_line(frame, event, argument):
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place in wanted:
            wanted[place] += 1
        return of_line

    def of_call(frame, event, argument):
        return of_line if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(of_call)
    try:
        with passes.as_eager():
            model(*arguments)
    finally:
        sys.settrace(before)
    return [[*place, count] for place, count in wanted.items()]


def smallest_submodule(model: Callable, arguments: tuple, named: dict, options: dict) -> Iterator[dict]:
    """Walk down from a module to the smallest submodule that alone is not one graph, telling each step.

    Each submodule is compiled by itself with the capture-only backend, on the inputs it gets in an eager call
    of the whole. A step tells its name, class and graphs, and whether it fails.
    """
    if not isinstance(model, torch.nn.Module):
        return
    inputs = _inputs_of(model, arguments, named)
    inside, name = model, ""
    while True:
        failing = None
        for child_name, child in inside.named_children():
            path = f"{name}.{child_name}" if name else child_name
            if id(child) not in inputs:
                continue
            told = _alone(child, *inputs[id(child)], options)
            yield {"submodule": path, "class": type(child).__name__, **told}
            if told["fails"] and failing is None:
                failing = (child, path)
        if failing is None:
            return
        inside, name = failing


def _inputs_of(model: torch.nn.Module, arguments: tuple, named: dict) -> dict[int, tuple[tuple, dict]]:
    """The arguments of each submodule's first call in an eager call of the model."""
    seen: dict[int, tuple[tuple, dict]] = {}

    def note(module, given, keywords):
        seen.setdefault(id(module), (given, keywords))

    handles = [
        each.register_forward_pre_hook(note, with_kwargs=True)
        for each in model.modules()
        if each is not model
    ]
    try:
        with passes.as_eager(), contextlib.suppress(Exception):
            model(*arguments, **named)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _alone(module: torch.nn.Module, arguments: tuple, named: dict, options: dict) -> dict:
    dynamo.forget_variants()
    graphs, mark = dynamo.graphs_captured(), dynamo.newest_compilation()
    run = torch.compile(module, backend="eager", **options)
    _, error = failure.guarded(lambda: run(*arguments, **named))
    captured = dynamo.graphs_captured() - graphs
    given_up = [frame for frame in dynamo.frames_since(mark) or [] if not frame.kept]
    return {
        "graphs": captured,
        "fails": bool(error) or captured != 1 or bool(given_up),
        "raises": failure.tell(error) if error else "",
    }
