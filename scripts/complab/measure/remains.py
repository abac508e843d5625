"""What does a call leave behind, and in what does that differ from another run of the same call?

What the call returned, its arguments afterwards, gradients where it trains, the state of the model and of the
subject's module, and the random streams. All as copies by name, so that nothing that happens later can change
them. Standard library and torch only.
"""

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, MethodType, ModuleType
from typing import NamedTuple

import torch

# Deeper than any program nests its outputs; stops at objects that hold themselves.
DEPTH = 12
PLAIN = (bool, int, float, complex, str, bytes, type(None))
# First parts of the names of the modules whose classes are a program's own: its objects are looked into.
PROGRAMS: set[str] = set()
RETURNED, ARGUMENT, STATE, GRADIENT = "returned value", "argument", "state", "gradient"


# Up to so many elements a tensor is compared in less time than a call takes.
SMALL = 1_000_000
# Sums taken in another order differ by a few times the rounding.
UNREST = 16


class Difference(NamedTuple):
    """One value that is not the same in two runs.

    ``where`` is what holds it (`returned value`, `argument`, `state`, `gradient`), ``name`` which of them.
    ``largest`` and ``relative`` are the largest absolute difference and its ratio to the largest expected
    value, NaN where the two cannot be subtracted; ``within`` whether it is inside the tolerance; ``rounding``
    the relative rounding of the values' dtype, 0 where values are exact.
    """

    where: str
    name: str
    largest: float
    relative: float
    within: bool
    told: str
    rounding: float = 0.0

    @property
    def is_unrest(self) -> bool:
        """Between two runs of one program: whether it is more than the rounding of a sum in another order."""
        return not self.relative <= UNREST * self.rounding

    def as_dict(self) -> dict:
        told = self._asdict()
        return told | {key: _finite(told[key]) for key in ("largest", "relative")}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Remains(NamedTuple):
    """What one call left behind, by name, and a fingerprint of the random streams after it."""

    returned: dict[str, object]
    arguments: dict[str, object]
    gradients: dict[str, object]
    rng: tuple


class State:
    """Tensors and plain values of a model and of its subject's module, and which of them a call changed."""

    def __init__(self, model: Callable, module: ModuleType):
        self._model, self._module = model, module
        self._versions: dict[str, tuple] = {}
        self.now: dict[str, object] = {}
        self.look()

    def look(self) -> set[str]:
        """Bring `now` up to date; returns the names of what has changed since the last look.

        A compiled form may change a tensor and leave its version as it was: small ones are compared, large
        ones are left to `refresh`.
        """
        changed = set()
        for name, value in self._values():
            if isinstance(value, torch.Tensor):
                version = (id(value), value.data_ptr() if _has_storage(value) else 0, _version(value))
                unchanged = version[2] is not None and self._versions.get(name) == version
                if unchanged and (value.numel() > SMALL or _same_tensor(self.now[name], value)):
                    continue
                self._versions[name] = version
                self.now[name] = copied(value)
                changed.add(name)
            elif name not in self.now or not _same_plain(self.now[name], value):
                self.now[name] = value
                changed.add(name)
        return changed

    def refresh(self, names: set[str]) -> None:
        """Bring tensors of these names up to date, whatever their version says: others saw them change."""
        for name, value in self._values():
            if name in names and isinstance(value, torch.Tensor) and value.numel() > SMALL:
                self.now[name] = copied(value)

    def _values(self) -> Iterator[tuple[str, object]]:
        seen: set[int] = set()
        for holder, value in self._holders():
            for path, leaf in leaves(value, holder):
                if isinstance(leaf, torch.nn.Module):
                    yield from _of_modules(leaf, path, seen)
                elif isinstance(leaf, (torch.Tensor, *PLAIN)):
                    yield path, leaf

    def objects(self) -> Iterator[tuple[str, object]]:
        """Each object, function and the like that a variable or an attribute of a module stands for."""
        for holder, value in self._holders():
            if isinstance(value, torch.nn.Module):
                for path, part in value.named_modules():
                    yield from _unplain(vars(part), _below(holder, path))
            elif holder:
                yield from _unplain({holder: value}, "")

    def modules(self) -> Iterator[torch.nn.Module]:
        """The modules that the program is made of, each with its submodules."""
        yield from (value for _, value in self._holders() if isinstance(value, torch.nn.Module))

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients that a backward pass left on parameters, by name."""
        found = {}
        for holder, value in self._holders():
            for name, parameter in value.named_parameters() if isinstance(value, torch.nn.Module) else ():
                if parameter.grad is not None:
                    found[_below(holder, name)] = parameter.grad
        return found

    def clear_gradients(self, everywhere: bool) -> None:
        """So that each call's gradients are its own; ``everywhere``: beyond the model, too.

        A program that has its own backward pass may add up gradients over several calls.
        """
        for holder, value in self._holders():
            if isinstance(value, torch.nn.Module) and (everywhere or not holder):
                for parameter in value.parameters():
                    parameter.grad = None

    def _holders(self) -> Iterator[tuple[str, object]]:
        """What the model is made of, and what the program's globals and the model's closure stand for."""
        yield from _of_model(self._model)
        for name, value in vars(self._module).items():
            if not name.startswith("__") and not isinstance(value, ModuleType):
                yield f"global {name}", value


def _of_model(model: Callable) -> Iterator[tuple[str, object]]:
    if isinstance(model, functools.partial):
        model = model.func
    if isinstance(model, MethodType):
        model = model.__self__
    if isinstance(model, torch.nn.Module):
        yield "", model
    elif isinstance(model, FunctionType):
        yield from ((f"closure {name}", cell.cell_contents) for name, cell in closure_cells(model))
    elif type(model).__module__.partition(".")[0] in PROGRAMS and not isinstance(model, type):
        yield from vars(model).items()


def closure_cells(function: FunctionType) -> Iterator[tuple[str, CellType]]:
    """Name and cell of each variable that a function closes over, and those of the functions among them."""
    seen: set[str] = set()
    waiting = [function]
    while waiting:
        current = waiting.pop()
        for name, cell in zip(current.__code__.co_freevars, current.__closure__ or (), strict=True):
            # One that was not assigned yet is empty.
            if name in seen or cell == CellType():
                continue
            seen.add(name)
            yield name, cell
            if isinstance(cell.cell_contents, FunctionType):
                waiting.append(cell.cell_contents)


def _below(holder: str, path: str) -> str:
    return ".".join(filter(None, (holder, path)))


def _unplain(held: dict[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in held.items():
        if not name.startswith("_") and not isinstance(value, (torch.Tensor, torch.nn.Module, *PLAIN)):
            yield _below(prefix, name), value


def _of_modules(root: torch.nn.Module, holder: str, seen: set[int]) -> Iterator[tuple[str, object]]:
    for path, part in root.named_modules():
        if id(part) not in seen:
            seen.add(id(part))
            yield from _of_module(part, _below(holder, path))


def _of_module(part: torch.nn.Module, prefix: str) -> Iterator[tuple[str, object]]:
    dot = f"{prefix}." if prefix else ""
    for name, tensor in (*part._parameters.items(), *part._buffers.items()):
        if tensor is not None:
            yield dot + name, tensor
    for name, value in vars(part).items():
        if not name.startswith("_"):
            yield from _plain_leaves(value, dot + name)


def _plain_leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    """Tensors and plain values in a value and in containers in it; nothing of other objects."""
    for path, leaf in leaves(value, name):
        if isinstance(leaf, (torch.Tensor, *PLAIN)):
            yield path, leaf


def _same_tensor(kept: torch.Tensor, value: torch.Tensor) -> bool:
    comparable = _has_storage(value) and not value.is_meta and kept.dtype == value.dtype
    return comparable and torch.equal(kept, value.detach())


def _has_storage(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


def _version(tensor: torch.Tensor) -> int | None:
    # An inference tensor keeps no version, so it is copied at every look.
    return None if tensor.is_inference() else tensor._version


def _same_plain(before: object, after: object) -> bool:
    return type(before) is type(after) and (before == after or (before != before and after != after))


def leaves(value: object, name: str = "", depth: int = DEPTH) -> Iterator[tuple[str, object]]:
    """Every value in nested lists, tuples, dicts, dataclasses and a program's own objects, with its path."""
    if depth == 0 or isinstance(value, (torch.Tensor, *PLAIN)):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}[{key!r}]", depth - 1)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for key, item in zip(value._fields, value, strict=True):
            yield from leaves(item, f"{name}.{key}", depth - 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves(item, f"{name}[{index}]", depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from leaves(getattr(value, each.name), f"{name}.{each.name}", depth - 1)
    elif is_own(value):
        for key, item in vars(value).items():
            # An object that leads back to another one is not followed there.
            yield from leaves(item, f"{name}.{key}", 0 if is_own(item) else depth - 1)
    else:
        yield name, value


def is_own(value: object) -> bool:
    """Whether it is an object of a class of the program under test that only holds values."""
    kind = type(value)
    if kind.__module__.partition(".")[0] not in PROGRAMS or not hasattr(value, "__dict__"):
        return False
    return not isinstance(value, type | torch.nn.Module) and not callable(value)


def copied(value: object) -> object:
    """A copy that later calls cannot change; what is no tensor and no plain value is told by its type."""
    if isinstance(value, torch.Tensor):
        kept = value.detach()
        kept = kept.to_dense() if kept.layout != torch.strided else kept
        return kept.clone()
    return value if isinstance(value, PLAIN) else type(value).__qualname__


def of_call(returned: object, arguments: tuple, named: dict, gradients: dict[str, object]) -> Remains:
    """Copies of what a call returned and of its arguments and gradients as they are now."""
    return Remains(
        {name: copied(leaf) for name, leaf in leaves(returned)},
        {name: copied(leaf) for name, leaf in named_arguments(arguments, named)},
        {name: copied(leaf) for name, leaf in gradients.items()},
        random_streams(),
    )


def named_arguments(arguments: tuple, named: dict) -> Iterator[tuple[str, object]]:
    """Every value in a call's arguments: `[0]`, `[1]['key']`, `name`."""
    yield from leaves(list(arguments))
    for key, value in named.items():
        yield from leaves(value, key)


def gradients_of(arguments: tuple, named: dict) -> dict[str, object]:
    """The gradients that a backward pass left on arguments."""
    return {
        f"argument {name}": leaf.grad
        for name, leaf in named_arguments(arguments, named)
        if isinstance(leaf, torch.Tensor) and leaf.is_leaf and leaf.grad is not None
    }


def random_streams() -> tuple:
    """A fingerprint of each random stream: it moves with every number drawn."""
    states = [hash(bytes(torch.get_rng_state().tolist()))]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(tuple(torch.cuda.get_rng_state().tolist()))
    return (*states, hash(random.getstate()))


def differences(
    expected: Remains, actual: Remains, tolerance: dict, widened: bool = False
) -> list[Difference]:
    """What two runs of one call left behind that is not the same, the largest first within each place.

    ``widened``: one of them ran in a wider floating-point type, which is then no difference by itself.
    """
    found: list[Difference] = []
    for where, before, after in (
        (RETURNED, expected.returned, actual.returned),
        (ARGUMENT, expected.arguments, actual.arguments),
        (GRADIENT, expected.gradients, actual.gradients),
    ):
        found += compared(where, before, after, tolerance, widened)
    return found


def compared(
    where: str,
    expected: dict[str, object],
    actual: dict[str, object],
    tolerance: dict,
    widened: bool = False,
) -> list[Difference]:
    """Differences of values by name; one that only one side has is a difference without a size."""
    found = []
    for name in expected.keys() | actual.keys():
        if name not in expected or name not in actual:
            side = "compiled" if name in actual else "eager"
            found.append(_without_size(where, name, f"only the {side} run has it"))
        elif difference := _difference(where, name, expected[name], actual[name], tolerance, widened):
            found.append(difference)
    return sorted(found, key=lambda each: (each.within, -_sized(each.largest), each.name))


def _sized(value: float) -> float:
    return value if value == value else math.inf


def _without_size(where: str, name: str, told: str) -> Difference:
    return Difference(where, name, math.nan, math.nan, False, told)


def _difference(where: str, name: str, expected, actual, tolerance: dict, widened: bool) -> Difference | None:
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        return _of_tensors(where, name, expected, actual, tolerance, widened)
    numbers = [value for value in (expected, actual) if isinstance(value, int | float | complex)]
    if len(numbers) == 2 and bool not in map(type, numbers):
        tensors = (torch.tensor(value, dtype=_kind(value)) for value in numbers)
        return _of_tensors(where, name, *tensors, tolerance, widened, exact=True)
    if _same_plain(expected, actual):
        return None
    return _without_size(where, name, f"eager {_short(expected)}, compiled {_short(actual)}")


def _kind(value: object) -> torch.dtype:
    return torch.complex128 if isinstance(value, complex) else torch.float64


def _short(value: object) -> str:
    told = repr(value) if isinstance(value, PLAIN) else f"a {type(value).__name__}"
    return told if len(told) <= 60 else told[:57] + "..."


def _of_tensors(
    where: str, name: str, expected, actual, tolerance: dict, widened: bool, exact: bool = False
) -> Difference | None:
    widened = widened and expected.is_floating_point() and actual.is_floating_point()
    for what in ("shape", "device") if widened else ("shape", "dtype", "device"):
        before, after = getattr(expected, what), getattr(actual, what)
        if before != after:
            told = f"{what}: eager {_told(before)}, compiled {_told(after)}"
            return _without_size(where, name, told)
    if expected.numel() == 0:
        return None
    # Wide enough for every dtype to be subtracted without rounding to another value.
    wide = torch.complex128 if expected.is_complex() else torch.float64
    before, after = (each.dequantize() if each.is_quantized else each for each in (expected, actual))
    before, after = before.to(wide), after.to(wide)
    same = (before == after) | (before.isnan() & after.isnan())
    if bool(same.all()):
        return None
    difference = (before - after).abs()[~same]
    largest = difference.max().item()
    scale = before.abs()[before.isfinite()]
    scale = scale.max().item() if scale.numel() else 0.0
    bound = tolerance["atol"] + tolerance["rtol"] * before.abs()[~same]
    within = bool((difference <= bound).all()) and math.isfinite(largest)
    count = int((~same).sum())
    told = f"{count} of {expected.numel()} values, largest difference {largest:.3g}"
    relative = largest / scale if scale else math.inf
    rounds = not exact and (expected.is_floating_point() or expected.is_complex())
    rounding = torch.finfo(expected.dtype).eps if rounds else 0.0
    return Difference(where, name, largest, relative, within, told, rounding)


def _told(value: object) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)
