"""Which attempts were made in a run, failed and interrupted ones too, and is the list still as written?

`results/{run}/attempts.jsonl` has one JSON object per line and is only ever appended to. Each line holds
the SHA-256 of the line before it, so a line that was altered, removed or put in between breaks the chain
from there on. An attempt is two lines: `started`, and `measured` or `failed` with the SHA-256 of the
provenance record that it left; a killed one has only the first.
"""

import fcntl
import hashlib
import json
import os
from pathlib import Path

from complab.errors import Unverified

FILE = "attempts.jsonl"
STARTED, MEASURED, FAILED = "started", "measured", "failed"
# The logs of failed attempts: the next attempt replaces the cell's own.
LOGS = "attempts"


def append(folder: Path, event: dict) -> None:
    """Add an event to the list of a run's folder, chained to the one before it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "rb+", buffering=0) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        lines = stream.read().split(b"\n")
        # A line that a full disk or a power cut left short stays, and the chain goes on over it.
        cut = lines[-1]
        last = cut or (lines[-2] if len(lines) > 1 else b"")
        line = json.dumps(event | {"previous": _hash(last)}, sort_keys=True, ensure_ascii=False)
        stream.write((b"\n" if cut else b"") + line.encode() + b"\n")
        os.fsync(stream.fileno())


def read(folder: Path) -> list[dict]:
    """The events of a run's folder in order, an empty list if there are none; Unverified if the chain breaks.

    A line that was cut off, and then chained over, is no event.
    """
    path = Path(folder) / FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    events, last = [], b""
    for number, line in enumerate(text.removesuffix(b"\n").split(b"\n"), start=1):
        event = _event(line)
        if event is not None and event.get("previous") != _hash(last):
            raise Unverified(
                f"{path}: line {number} does not follow the line before it; the list was altered"
            )
        events += [event] if event else []
        last = line
    if not text.endswith(b"\n") or _event(last) is None:
        raise Unverified(f"{path}: the last line is cut off; the next attempt goes on from there")
    return events


def _event(line: bytes) -> dict | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest() if line else ""
