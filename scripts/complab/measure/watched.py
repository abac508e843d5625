"""What did the regions of a watched program do? Each as it was noted, its ledger, and the text of all.

RUNS, CAPTURED and STABLE are judged from what was noted; CORRECT and WORTH IT cannot be, from outside.
"""

import os
import statistics
from collections import Counter
from dataclasses import dataclass, field

import torch

from complab import mechanisms
from complab.diagnose import capture
from complab.diagnose.judgement import FAIL, NO_EVIDENCE, NOT_JUDGED, PASS, Judgement
from complab.errors import counted, one_line
from complab.measure import dynamo

OUTSIDE = "it cannot be judged from outside the program"
TORCH = os.path.dirname(torch.__file__) + os.sep


@dataclass(repr=False)
class Region:
    """What one `torch.compile` in the program's source compiles, and what its calls did.

    A loop that compiles objects of one class, or one function again and again, makes one region: they share
    the code object with which Dynamo keeps its variants. `times` tells how often it was compiled.
    """

    name: str
    code: object
    site: str
    options: dict
    times: int = 0
    calls: int = 0
    fates: Counter = field(default_factory=Counter)
    lines: list[dict] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    compile_seconds: float = 0.0
    raised: list[tuple[int, str, list[str]]] = field(default_factory=list)

    def __repr__(self) -> str:
        """Short, with the first reason: a failed assertion of a test shows it."""
        counts = {
            "call": self.calls,
            "graph": self.graphs,
            "break": self.breaks,
            "recompile": self.recompiles,
        }
        told = ", ".join(counted(number, noun) for noun, number in counts.items())
        broken = [f"{file}:{line}" for file, line in capture.break_lines(self.stream())]
        failed = [each[0][1] for line in self.lines for _, each in line["recompiles"] if each]
        return f"{self.name}: {told}" + (f" ({one_line([*broken, *failed][0])})" if broken or failed else "")

    @property
    def place(self) -> str:
        """Where its code begins; empty if it has no code of its own."""
        return "" if self.code is None else f"{self.code.co_filename}:{self.code.co_firstlineno}"

    @property
    def graphs(self) -> int:
        """Variants that were kept, of the region's own code and of what it calls."""
        return sum(line["kept"] for line in self.lines)

    @property
    def breaks(self) -> int:
        """Places of graph breaks; frames that were given up where no break is logged."""
        stream = self.stream()
        return len(capture.break_lines(stream)) or capture.captured_facts(stream)["frames skipped"]

    @property
    def recompiles(self) -> int:
        """Recompiles by the log, those refused at the limit included."""
        return sum(len(line["recompiles"]) for line in self.lines)

    @property
    def ledger(self) -> dict:
        """Its levels and what they were judged from."""
        return ledger(self, [])

    def stream(self) -> capture.Stream:
        return capture.Stream(self.lines, self.calls, self.fates, graphs_run=False)

    def since(self, mark: "Mark") -> "Region":
        """What happened after the mark was set."""
        return Region(
            self.name,
            self.code,
            self.site,
            self.options,
            self.times,
            self.calls - mark.calls,
            self.fates - mark.fates,
            [line | {"call": line["call"] - mark.calls} for line in self.lines[mark.lines :]],
            self.seconds[mark.seconds :],
            self.compile_seconds - mark.compile_seconds,
            [(call - mark.calls, *rest) for call, *rest in self.raised[mark.raised :]],
        )


@dataclass(frozen=True)
class Mark:
    """How far a region had come."""

    calls: int = 0
    fates: Counter = field(default_factory=Counter)
    lines: int = 0
    seconds: int = 0
    compile_seconds: float = 0.0
    raised: int = 0


def ledger(region: Region, others: list[Region]) -> dict:
    """The levels of a region; ``others`` are all of the program, some of which may share its code."""
    stream = region.stream()
    levels = {"RUNS": _runs(region), "CORRECT": Judgement(NOT_JUDGED, OUTSIDE)}
    if levels["RUNS"].verdict == PASS:
        levels["CAPTURED"] = _captured(region, stream, others)
    if "CAPTURED" in levels and levels["CAPTURED"].verdict == PASS:
        levels["STABLE"] = capture.stable(stream, [])
    failing = next((level for level, each in levels.items() if each.verdict == FAIL), None)
    after = Judgement(NOT_JUDGED, "an earlier level did not pass")
    for level in ("CAPTURED", "STABLE"):
        levels.setdefault(level, after)
    levels["WORTH IT"] = Judgement(NOT_JUDGED, OUTSIDE)
    return {
        "region": region.name,
        "place": region.place,
        "compiled at": region.site,
        "times": region.times,
        "options": region.options,
        "first_failing_level": failing,
        "mechanism": levels[failing].mechanism if failing else None,
        "levels": [
            {"level": level, "verdict": each.verdict, "evidence": each.evidence, "mechanism": each.mechanism}
            for level, each in levels.items()
        ],
        "stability": capture.stability(stream, []),
        "cost": {
            "first_call_s": region.lines[0]["seconds"] if region.lines else None,
            "compiling_calls_s": region.compile_seconds,
            "median_later_call_s": statistics.median(region.seconds) if region.seconds else None,
        },
    }


def _captured(region: Region, stream: capture.Stream, others: list[Region]) -> Judgement:
    if region.lines:
        return capture.captured(stream)
    if eager := region.fates["eager after the limit"]:
        told = (
            f"{counted(eager, 'call')} ran eager: another region had used up the limit of the code they share"
        )
        return Judgement(NO_EVIDENCE, told)
    sharing = [each for each in others if each.code is region.code and each.graphs]
    if region.code is not None and sharing:
        # What Dynamo keeps belongs to the code object, whichever region made it compile.
        found = capture.captured(sharing[0].stream())
        found.evidence += f", by the region compiled at {sharing[0].site}, which shares its code"
        return found
    # Around a module of torch itself Dynamo captures a frame of its own.
    if region.place.startswith(TORCH) or dynamo.cache_entries(region.code):
        told = "Dynamo compiled nothing in these calls: a copy of the region may have made it compile before"
        return Judgement(NO_EVIDENCE, told)
    return capture.captured(stream)


def _runs(region: Region) -> Judgement:
    if not region.raised:
        return Judgement(PASS, f"{counted(region.calls, 'call')}, none raised")
    call, told, names = region.raised[0]
    word = mechanisms.of_error(names, "True" in str(region.options.get("fullgraph")))
    if not word and any(name.startswith(("BackendCompilerFailed", "InductorError")) for name in names):
        word = "inductor-error"
    if not word:
        return Judgement(NO_EVIDENCE, f"call {call} raises {told}; eager may do so too")
    return Judgement(FAIL, f"call {call} raises {told}", word)


def text(told: dict, folder: str = "") -> str:
    """The ledgers for a terminal, one region after another; places in the folder without its name."""
    lines = [f"complab watch: {counted(len(told['regions']), 'compiled region')} (torch {told['torch']})"]
    for each in told["regions"]:
        lines += ["", *_region_lines(each)]
    unused = [
        f"{name} × {times}" if times > 1 else name for name, times in Counter(told["not called"]).items()
    ]
    lines += [f"\nnever called on its own: {', '.join(unused)}"] if unused else []
    lines += [f"\nnot understood, so left out: {'; '.join(told['missed'][:3])}"] if told["missed"] else []
    text = "\n".join([*lines, "", _overhead_line(told["overhead"])])
    return text.replace(f"{folder.rstrip(os.sep)}{os.sep}", "") if folder else text


def _region_lines(told: dict) -> list[str]:
    head = f"{told['region']}  {told['place']}"
    if told["compiled at"] not in ("", told["place"]):
        head += f", compiled at {told['compiled at']}"
    if told["times"] > 1:
        head += f", {told['times']} times"
    cost, failing = told["cost"], told["first_failing_level"]
    later = cost["median_later_call_s"]
    return [
        head,
        *(f"  {each['level']:9} {each['verdict']:11}  {each['evidence']}" for each in told["levels"]),
        f"  cost      {counted(told['stability']['calls'], 'call')}, {cost['compiling_calls_s']:.3g} s in "
        f"those that compiled, {'no later call' if later is None else f'{later * 1e6:.3g} µs a later call'}",
        f"  {failing} fails, {told['mechanism']}" if failing else f"  {_unknown(told) or 'no failure seen'}",
    ]


def _unknown(told: dict) -> str:
    lacking = [each["level"] for each in told["levels"] if each["verdict"] == NO_EVIDENCE]
    return f"{lacking[0]} has no evidence" if lacking else ""


def _overhead_line(told: dict) -> str:
    if "not measured" in told:
        return f"what watching adds to a compiled call could not be measured: {told['not measured']}"
    added, low, high = (told[key] * 1e6 for key in ("added_s_per_call", "low", "high"))
    return (
        f"watching adds {added:.2f} [{low:.2f}, {high:.2f}] µs to a compiled call: median and 95% interval "
        f"of {told['rounds']} rounds, {told['calls']} calls on and {told['calls']} off in each"
        + (
            "; not counted: past the recompile limit each call's guards are asked"
            if told["past the limit"]
            else ""
        )
    )
