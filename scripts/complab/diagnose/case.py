"""What is known of a subject so far, and what can be measured of it when a judge asks?"""

from collections import Counter
from functools import cached_property

from complab.diagnose.capture import Stream
from complab.diagnose.judgement import LAYERS
from complab.diagnose.lab import Noted, Process


class Case:
    """A subject's notes so far; what a judge needs beyond them is measured when it asks for it.

    ``first`` is the process that ran the subject eagerly twice and then compiled.
    """

    def __init__(self, lab, first: Process, quick: bool):
        self.lab, self.first, self.quick = lab, first, quick

    @property
    def eager(self) -> Noted:
        return self.first.runs.get("eager", Noted())

    @property
    def stream(self) -> Noted:
        return self.first.runs.get("compiled", Noted())

    @cached_property
    def subject(self) -> dict:
        return self.eager.first("subject", {})

    @property
    def options(self) -> dict:
        return self.subject.get("options", {})

    @property
    def backend(self) -> str:
        return self.options.get("backend", "inductor")

    @property
    def calls(self) -> Stream:
        """The calls of the compiled form, as the judges of capture want them."""
        lines = [line for line in self.stream.calls if "fate" in line]
        fates = Counter(line["fate"] for line in lines)
        closure = frozenset(self.subject.get("closure", []))
        return Stream(lines, len(lines), fates, disabled=bool(self.options.get("disable")), closure=closure)

    @property
    def restless(self) -> list[list[str]]:
        """Where and name of each value that two eager runs did not agree in."""
        return self.eager.first("restless", [])

    @property
    def moved(self) -> list[dict]:
        return self.eager.first("moved", [])

    def tried(self, label: str, cache: str = "", **changes) -> Noted:
        """One more compiled run with these changes, in a process of its own."""
        run = {"kind": "compiled", "label": label, **changes}
        done = self.lab.process([run], cache)
        noted = done.runs.get(label, Noted())
        if done.died:
            noted.end_with(died(done))
        return noted

    def layers(self, until: int) -> dict[str, Noted]:
        """The stream up to a call under each backend before the program's own, in one process.

        One whose process died there has an error like any other; then the backends after it are not tried.
        """
        order = list(LAYERS)
        # A backend of the program's own takes the place of Inductor.
        names = order[: order.index(self.backend)] if self.backend in order else order[:-1]
        runs = [
            {"kind": "compiled", "label": f"backend {name}", "until": until, "options": _backend(name)}
            for name in names
        ]
        done = self.lab.process(runs) if runs else Process({})
        if done.died and done.runs:
            done.last[1].end_with(died(done))
        return {name: done.runs[f"backend {name}"] for name in names if f"backend {name}" in done.runs}


def _backend(name: str) -> dict:
    # Modes and options belong to Inductor.
    return {"backend": name, "mode": None, "options": None}


def died(done: Process) -> dict:
    """A process's end, told as an exception is."""
    told = f"the process {done.died}"
    return {"told": told, "chain": [["ProcessDied", told]], "where": None}


def first_error(noted: Noted, actor: str) -> tuple[int, dict] | None:
    """Number and error of the first call at which an actor raised."""
    for line in noted.calls:
        if actor in line.get("error", {}):
            return line["call"], line["error"][actor]
    return None


def first_difference(noted: Noted) -> tuple[int, list[dict]] | None:
    """Number and differences of the first call beyond the tolerance, where nothing raised."""
    for line in noted.calls:
        if not line.get("error") and not line.get("within", True):
            return line["call"], [each for each in line["differences"] if not each["within"]]
    return None
