"""Which properties of a stream's inputs move from call to call, and what values were seen?

Told of the program itself, by no compiler: a guard's text may name one of several properties that moved, this
tells them all. Standard library and torch only.
"""

from collections.abc import Callable, Iterator

import torch

from complab.measure import remains

# Enough to see a pattern; how many there were is counted on.
KEPT = 12


class Moves:
    """Collects, call by call, each property of arguments, surroundings and plain state, and its values."""

    def __init__(self):
        self._seen: dict[tuple[str, str, str], dict] = {}
        self._calls = 0

    def note(
        self,
        arguments: tuple,
        named: dict,
        state: dict[str, object],
        names: list[str],
        objects: dict[str, object] | None = None,
    ) -> None:
        """One call. ``names`` are the parameters that positional arguments go to, as far as known.

        ``state`` holds plain values and tensors by name, ``objects`` all else that a name stands for.
        """
        held = [
            (("state", name, what), name, told)
            for name, value in (objects or {}).items()
            for what, told in (("type", type(value).__qualname__), ("identity", str(id(value))))
        ]
        for key, path, value in (*_properties(arguments, named, state, names), *held):
            seen = self._seen.setdefault(key, {"path": path, "values": {}})
            seen["values"].setdefault(value, self._calls)
        self._calls += 1

    def moved(self) -> list[dict]:
        """Each property with more than one value: where it is, its values in order, and how many there were.

        ``path`` is the name that `remains.named_arguments` and `remains.State` give it.
        """
        return [
            {
                "place": place,
                "name": name,
                "path": seen["path"],
                "property": what,
                "values": list(seen["values"])[:KEPT],
                "distinct": len(seen["values"]),
                "changes_at": list(seen["values"].values())[1:KEPT],
            }
            for (place, name, what), seen in self._seen.items()
            if len(seen["values"]) > 1
        ]


def parameter_names(code) -> list[str]:
    """Names of a code object's positional parameters; a method's own object is none of the arguments."""
    if code is None:
        return []
    names = list(code.co_varnames[: code.co_argcount])
    return names[1:] if names[:1] == ["self"] else names


def _properties(
    arguments: tuple, named: dict, state: dict, names: list[str]
) -> Iterator[tuple[tuple[str, str, str], str, str]]:
    """((place, name, property), path, value) of everything that a call is given or finds."""
    given = [(f"[{index}]", value) for index, value in enumerate(arguments)] + list(named.items())
    for position, (root, value) in enumerate(given):
        shown = names[position] if position < min(len(names), len(arguments)) else root
        for path, what, told in _of_value(value, root):
            yield ("argument", shown + path.removeprefix(root), what), path, told
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            yield ("state", name, "value"), name, repr(value)
    for name, value in _surroundings():
        yield ("surroundings", name, "value"), name, value


def _of_value(value: object, name: str) -> Iterator[tuple[str, str, str]]:
    for path, container in _containers(value, name):
        what = "keys" if isinstance(container, dict) else "length"
        told = ", ".join(map(repr, container)) if isinstance(container, dict) else str(len(container))
        yield path, what, told
    if remains.is_own(value):
        yield name, "identity", str(id(value))
    for path, leaf in remains.leaves(value, name):
        yield path, "type", type(leaf).__qualname__
        if isinstance(leaf, torch.Tensor):
            yield from ((path, what, told) for what, told in _of_tensor(leaf))
        elif isinstance(leaf, remains.PLAIN):
            yield path, "value", repr(leaf)
        else:
            yield path, "identity", str(id(leaf))


def _of_tensor(tensor: torch.Tensor) -> Iterator[tuple[str, str]]:
    yield "rank", str(tensor.dim())
    for axis, size in enumerate(tensor.shape):
        yield f"size at index {axis}", str(int(size))
    yield "dtype", str(tensor.dtype)
    yield "device", str(tensor.device)
    yield "requires_grad", str(tensor.requires_grad)
    if tensor.layout == torch.strided:
        # Strides follow sizes; what is told is whether the order in memory differs.
        yield "layout", "contiguous" if tensor.is_contiguous() else f"strides {tuple(tensor.stride())}"


def _containers(value: object, name: str, depth: int = remains.DEPTH) -> Iterator[tuple[str, object]]:
    if depth and isinstance(value, dict):
        yield name, value
        for key, item in value.items():
            yield from _containers(item, f"{name}[{key!r}]", depth - 1)
    elif depth and isinstance(value, list | tuple):
        yield name, value
        for index, item in enumerate(value):
            yield from _containers(item, f"{name}[{index}]", depth - 1)


def _surroundings() -> Iterator[tuple[str, str]]:
    yield "grad mode", str(torch.is_grad_enabled())
    yield "default dtype", str(torch.get_default_dtype())
    yield "threads", str(torch.get_num_threads())
    for device in ("cpu", "cuda"):
        yield f"autocast on {device}", str(_autocast(device))


def _autocast(device: str) -> bool:
    enabled: Callable = torch.is_autocast_enabled
    return enabled(device)
