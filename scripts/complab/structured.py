"""What does torch's structured trace say?

Reads the file that torch writes under `TORCH_TRACE` into plain facts. Recorded on 2.6.0 and 2.13.0, see
tests/data/traces; the standard library is enough, so the measured process can use it too.

An entry is one line, a log prefix and a JSON object that says what happened in which frame; a payload
(a graph, a message, generated code) follows it in lines that begin with a tab, and the object's
`has_payload` is the MD5 of its text:

    V0131 23:59:59.123000 4711 torch/_dynamo/guards.py:2791] {"artifact": {...}, "has_payload": ...}
    \tthe payload

What the releases write (2.6 | 2.13, where it differs):

    aotautograd_cache_hash, its payload with "cache_state" | aotautograd_cache_miss, aotautograd_cache_hit
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from complab import torchlog

_ENTRY = re.compile(r"(?P<prefix>(?:\[rank\d+\]:)?[VIWEC]\d{4} \S+ \d+ [^\]]*:\d+\] )(?P<told>\{.*\})$")
_SUM = "has_payload"


@dataclass(frozen=True)
class Entry:
    """One entry: what stands before its JSON object, the object, and the payload, None without one."""

    prefix: str
    told: dict
    payload: str | None

    @property
    def whole(self) -> bool:
        """Whether the payload is the one that was written."""
        return self.payload is None or self.told[_SUM] == _sum(self.payload)

    @property
    def artifact(self) -> str:
        """Name of the artifact that the payload is, empty for another kind of entry."""
        return self.told.get("artifact", {}).get("name", "")

    @property
    def compile_id(self) -> tuple[int, int] | None:
        """Frame and its compile, counted from 0; None outside of any."""
        frame, compiled = self.told.get("frame_id"), self.told.get("frame_compile_id")
        return None if frame is None or compiled is None else (frame, compiled)


@dataclass(frozen=True)
class Trace:
    """The counts of a trace, and the breaks and recompiles themselves.

    ``frames`` counts the compiles of frames that were begun, ``graphs`` the graphs handed to a backend,
    ``caches`` what lookups of the "fx_graph" and "aotautograd" caches came to, by (cache, outcome).
    ``recompiles`` holds every reason: entry and failed guard, one line per entry that refused the call.
    """

    frames: int
    graphs: int
    breaks: tuple[torchlog.Break, ...]
    recompiles: tuple[str, ...]
    caches: dict[tuple[str, str], int]

    def lookups(self, cache: str, outcome: str) -> int:
        """How many lookups of a cache came to "hit", "miss" or "bypass"."""
        return self.caches.get((cache, outcome), 0)


def entries(text: str) -> Iterator[Entry]:
    """Every whole entry, in order; what is cut off or no entry is passed over."""
    head, payload = None, []
    for line in [*text.split("\n"), ""]:
        if line.startswith("\t"):
            payload.append(line[1:])
            continue
        if head and (entry := _entry(head, payload)):
            yield entry
        head, payload = _ENTRY.match(line), []


def _entry(head: re.Match, payload: list[str]) -> Entry | None:
    try:
        told = json.loads(head["told"])
    except ValueError:
        return None
    entry = Entry(head["prefix"], told, "\n".join(payload) if _SUM in told else None)
    return entry if entry.whole else None


def _sum(payload: str) -> str:
    return hashlib.md5(payload.encode(), usedforsecurity=False).hexdigest()


def parse(text: str) -> Trace:
    """The facts of a trace, or of a part of one that begins and ends between two entries."""
    found = list(entries(text))
    started = {entry.compile_id for entry in found if "dynamo_start" in entry.told}
    told = [entry.payload for entry in found if entry.artifact == "dynamo_graph_break_reason"]
    reasons = [entry.payload for entry in found if entry.artifact == "recompile_reasons"]
    return Trace(
        frames=len(started - {None}),
        graphs=sum("dynamo_output_graph" in entry.told for entry in found),
        breaks=tuple(item for message in told for item in torchlog.parse(message).breaks),
        recompiles=tuple(map(_reasons, reasons)),
        caches=dict(Counter(outcome for entry in found if (outcome := _lookup(entry)))),
    )


def _reasons(payload: str) -> str:
    """A list of reasons in JSON or, where there is one only, a bare line."""
    try:
        told = json.loads(payload)
    except ValueError:
        told = payload
    return "\n".join(told) if isinstance(told, list) else str(told)


_LOOKUP = re.compile(r"(?P<cache>fx_graph|aotautograd)_cache_(?P<outcome>hit|miss|bypass|hash)")


def _lookup(entry: Entry) -> tuple[str, str] | None:
    found = _LOOKUP.fullmatch(entry.artifact)
    if found is None:
        return None
    outcome = found["outcome"]
    if outcome == "hash":
        outcome = json.loads(entry.payload).get("cache_state", "")
    return found["cache"], outcome


def rewritten(text: str, change: Callable[[str], str], keep: Callable[[Entry], bool] | None = None) -> str:
    """The trace with ``change`` applied to every text in it, its payload sums made to fit again.

    ``keep`` says which entries stay; all without it. What is no whole entry is left out.
    """
    return "".join(_text(entry, change) for entry in entries(text) if keep is None or keep(entry))


def _text(entry: Entry, change: Callable[[str], str]) -> str:
    told = {key: value for key, value in entry.told.items() if key != _SUM}
    told = json.loads(change(json.dumps(told)))
    if entry.payload is None:
        return f"{entry.prefix}{json.dumps(told)}\n"
    payload = change(entry.payload)
    told[_SUM] = _sum(payload)
    lines = "".join(f"\t{line}\n" for line in payload.split("\n"))
    return f"{entry.prefix}{json.dumps(told)}\n{lines}"
