"""What is a judgement of a level? Pure data; the standard library is enough."""

from dataclasses import dataclass, field
from typing import NamedTuple

LEVELS = ("RUNS", "CORRECT", "CAPTURED", "STABLE", "WORTH IT")
PASS, FAIL, NO_EVIDENCE, NOT_JUDGED = "pass", "fail", "no evidence", "not judged"
EAGER, COMPILED = "eager", "compiled"
# A variable that only a probe's process and what it starts have with this value.
MARK = "COMPLAB_PROCESS"
# What each backend adds to the one before it.
LAYERS = {"eager": "dynamo", "aot_eager": "aot-autograd", "inductor": "inductor"}


class Place(NamedTuple):
    """A line of the program that evidence points to."""

    file: str
    line: int
    source: str


@dataclass
class Judgement:
    """What one level says: verdict, the sentence that decided it, and the cause if it fails.

    ``instrument`` is what told the decisive fact, ``place`` the line of the program it points to, ``facts``
    further findings for the reader.
    """

    verdict: str
    evidence: str
    mechanism: str = ""
    instrument: str = ""
    place: Place | None = None
    facts: dict = field(default_factory=dict)


def place_of(where: list | None) -> Place | None:
    return Place(*where) if where else None
