"""What may a run change about a subject, so that a cause is tested and nothing else?"""

import ast
import contextlib
import copy
import re
from collections.abc import Callable

import torch

from complab.measure import dynamo, dynamo_programs, failure, remains
from complab.measure.passes import Actor, Stage


@contextlib.contextmanager
def settings(wanted: dict[str, object]):
    """Settings of Dynamo and Inductor inside; what the release does not have is left out.

    `left_out` is no setting but a list of functions whose calls a graph leaves out.
    """
    wanted, before = dict(wanted), {}
    for name in wanted.pop("left_out", []):
        dynamo_programs.leave_out(_function(name))
    try:
        for name, value in wanted.items():
            name = dynamo_programs.limit_setting() if name == "recompile_limit" else name
            if dynamo_programs.has_setting(name):
                before[name] = dynamo_programs.set_setting(name, value)
        yield
    finally:
        for name, value in before.items():
            dynamo_programs.set_setting(name, value)


def _function(name: str) -> Callable:
    """The function of a dotted name: `logging.Logger.info`, `print`."""
    module, _, rest = name.partition(".")
    found = __import__(module) if rest else __import__("builtins")
    for part in (rest or name).split("."):
        found = getattr(found, part)
    return found


def actor(name: str, run: dict) -> Actor:
    """The compiled form with the changes that a run lists.

    ``options`` are laid over the author's (None takes one away), ``hold`` keeps properties as they were in
    the first call, ``mark`` tells Dynamo which axes move, ``fresh_from`` forgets every variant before each
    call from that one on, ``weak_marks`` turns `mark_dynamic` into a form that a program may overrule, and
    ``without_modes`` makes each call outside of every dispatch mode.
    """
    hold, mark, fresh = run.get("hold"), run.get("mark", []), run.get("fresh_from")
    keeper = _Keeper(hold) if hold else None

    def arguments(index: int, given: tuple, named: dict) -> tuple[tuple, dict]:
        if keeper:
            given, named = keeper.arguments(given, named)
        for path, axis in mark:
            value = dict(remains.named_arguments(given, named)).get(path)
            if isinstance(value, torch.Tensor) and axis < value.dim():
                dynamo_programs.mark_moving(value, axis)
        return given, named

    def before(index: int, stage: Stage) -> None:
        if keeper:
            keeper.state(stage)
        if fresh is not None and index >= fresh:
            dynamo.forget_variants()

    around = dynamo_programs.outside_of_modes if run.get("without_modes") else contextlib.nullcontext
    making = dynamo_programs.weak_marks if run.get("weak_marks") else contextlib.nullcontext
    options = run.get("options", {})
    return Actor(name, True, options, arguments=arguments, before=before, around=around, making=making)


class _Keeper:
    """Holds still what moved: arguments, plain state and surroundings as they were in the first call."""

    def __init__(self, places: list[list[str]]):
        self._arguments = {name for place, name in places if place == "argument"}
        self._states = {name for place, name in places if place == "state"}
        self._grad_mode = any(place == "surroundings" for place, _ in places)
        self._first: dict[str, object] = {}

    def arguments(self, given: tuple, named: dict) -> tuple[tuple, dict]:
        names = [f"[{index}]" for index in range(len(given))]
        kept = tuple(self._kept(name, value) for name, value in zip(names, given, strict=True))
        return kept, {name: self._kept(name, value) for name, value in named.items()}

    def _kept(self, name: str, value: object) -> object:
        if name in self._arguments:
            # Its identity or itself: the very object.
            return self._first.setdefault(name, value)
        if not any(path.startswith((f"{name}[", f"{name}.")) for path in self._arguments):
            return value
        if name not in self._first:
            self._first[name], _ = failure.guarded(lambda: copy.deepcopy(value))
        # A copy each time: the program may change what is in it.
        kept, error = failure.guarded(lambda: copy.deepcopy(self._first[name]))
        return value if error or kept is None else kept

    def state(self, stage: Stage) -> None:
        if self._grad_mode:
            torch.set_grad_enabled(self._first.setdefault("grad mode", torch.is_grad_enabled()))
        for name in self._states:
            # What is not there, or cannot be set, is not held.
            failure.guarded(lambda name=name: self._hold(stage, name))

    def _hold(self, stage: Stage, name: str) -> None:
        holder, key, is_item = _holder(stage, name)
        value = self._first.setdefault(name, holder[key] if is_item else getattr(holder, key))
        if is_item:
            holder[key] = value
        else:
            setattr(holder, key, value)


# A step in the name of a value: an item by its key, or an attribute.
_STEP = re.compile(r"""\[((?:'(?:\\.|[^'])*'|"(?:\\.|[^"])*"|[^\]'"])*)\]|\.?(\w+)""")


def _holder(stage: Stage, name: str) -> tuple[object, object, bool]:
    """What holds a plain value by its name in `remains.State`: object, key, and whether that is an item."""
    if name.startswith("global "):
        holder, rest = stage.subject.module, name.removeprefix("global ")
    elif name.startswith("closure "):
        return _in_closure(stage.model, name.removeprefix("closure "))
    else:
        holder, rest = getattr(stage.model, "__self__", stage.model), name
    return _walk(holder, rest)


def _walk(holder: object, rest: str) -> tuple[object, object, bool]:
    steps = [
        (ast.literal_eval(item), True) if item else (attribute, False)
        for item, attribute in _STEP.findall(rest)
    ]
    for key, is_item in steps[:-1]:
        holder = holder[key] if is_item else getattr(holder, key)
    return holder, *steps[-1]


def _in_closure(model: Callable, name: str) -> tuple[object, object, bool]:
    variable = re.match(r"\w+", name)[0]
    cell = dict(remains.closure_cells(model))[variable]
    rest = name.removeprefix(variable)
    return _walk(cell.cell_contents, rest) if rest else (cell, "cell_contents", False)


def in_float64() -> Actor:
    """Eager in float64: every module of the program, and every floating-point argument."""

    def before(index: int, stage: Stage) -> None:
        if index == 0:
            for module in stage.state.modules():
                module.double()

    return Actor("float64", before=before, arguments=lambda _, given, named: _each(given, named, _double))


# A little more than the rounding of float32: what a program cannot be asked to be indifferent to.
NUDGE = 2.0**-22


def nudged() -> Actor:
    """Eager from inputs that are moved by about their own rounding."""
    return Actor("nudged", arguments=lambda _, given, named: _each(given, named, _nudge))


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return _like(tensor, tensor.detach().double())


def _nudge(tensor: torch.Tensor) -> torch.Tensor:
    eps = max(torch.finfo(tensor.dtype).eps, NUDGE)
    generator = torch.Generator().manual_seed(0)
    sign = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.device) * 2 - 1
    return _like(tensor, tensor.detach() * (1 + eps * sign.to(tensor.dtype)))


def _like(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return value.to(value.dtype).requires_grad_(tensor.requires_grad)


def _each(given: tuple, named: dict, change: Callable) -> tuple[tuple, dict]:
    """Arguments with every floating-point tensor changed, in nested lists, tuples and dicts too."""

    def of(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return change(value) if value.is_floating_point() else value
        if isinstance(value, dict):
            return type(value)((key, of(item)) for key, item in value.items())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(of, value))
        return type(value)(map(of, value)) if isinstance(value, list | tuple) else value

    return tuple(of(value) for value in given), {key: of(value) for key, value in named.items()}
