"""How do thousands of chains, which have most of their parts in common, stay small as JSON?

Each different value is stored once. A packed value is a list of entries, parts before what they are part
of and the whole last: a text, number, flag or null stands for itself; a list is [0, places of its items];
an object is [n, places of its values], with the n-th of the listed shapes for its keys. The page unpacks
it in a dozen lines.
"""

from collections.abc import Iterable


def packed(value: object) -> dict:
    """A JSON value as shapes and entries."""
    pool = _Pool()
    pool.place(value)
    return {"shapes": [list(keys) for keys in pool.shapes], "entries": pool.entries}


def unpacked(told: dict) -> object:
    """The value that `packed` took apart."""
    made: list[object] = []
    for entry in told["entries"]:
        if not isinstance(entry, list):
            made.append(entry)
            continue
        shape, *places = entry
        values = [made[place] for place in places]
        made.append(dict(zip(told["shapes"][shape - 1], values, strict=True)) if shape else values)
    return made[-1]


class _Pool:
    def __init__(self):
        self.entries: list[object] = []
        self.shapes: dict[tuple[str, ...], int] = {}
        self._places: dict[tuple, int] = {}

    def place(self, value: object) -> int:
        """The place of a value among the entries; True, 1 and 1.0 are three values, 0.0 and -0.0 two."""
        if isinstance(value, dict):
            shape = self.shapes.setdefault(tuple(value), len(self.shapes) + 1)
            return self._part(shape, value.values())
        if isinstance(value, list | tuple):
            return self._part(0, value)
        return self._once((type(value).__name__, repr(value)), value)

    def _part(self, shape: int, values: Iterable) -> int:
        entry = [shape, *map(self.place, values)]
        return self._once(("part", *entry), entry)

    def _once(self, key: tuple, entry: object) -> int:
        if key not in self._places:
            self._places[key] = len(self.entries)
            self.entries.append(entry)
        return self._places[key]
