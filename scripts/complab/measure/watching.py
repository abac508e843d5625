"""What happens in each compiled region of a program that runs as it is?

Every callable that goes through `torch.compile` while a `Watcher` is on gets a thin shell: it notes the
calls in which Dynamo tried a frame, and counts the others. What Dynamo says in these calls is read from its
own record and from its log, thread by thread. Standard library and torch only.
"""

import copy
import functools
import gc
import inspect
import os
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import FunctionType

import torch

from complab import mechanisms, torchlog
from complab.diagnose import capture
from complab.diagnose.judgement import FAIL, NO_EVIDENCE, NOT_JUDGED, PASS, Judgement
from complab.errors import EnvironmentProblem, counted, one_line
from complab.measure import dynamo, failure, regions

# So many calls with an event are kept one by one: a program that goes on compiling has shown it by then.
KEPT_EVENTS = 1000
SECONDS_KEPT = 4096
OUTSIDE = "it cannot be judged from outside the program"
OVERHEAD_ROUNDS, OVERHEAD_CALLS = 41, 400
# The 14th and the 28th of 41 differences: an interval of their median of more than 95 percent, whatever
# their distribution.
OVERHEAD_RANKS = (13, 27)


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
        return _ledger(self, [])

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


class _Thread(threading.local):
    """What a thread was told in the watched call that it is in."""

    def __init__(self):
        self.inside = False
        # The module or class whose function is being compiled.
        self.given = None
        self.log: list[str] = []
        self.compilations: list = []


class Watcher:
    """Watches while the context lasts; `report` tells what was seen.

    EnvironmentProblem if this torch does not tell its compilations.
    """

    def __init__(self):
        self.on = False
        self.missed: list[str] = []
        self._regions: dict[tuple, Region] = {}
        self._unwatched = None
        self._lock = threading.Lock()
        self._thread = _Thread()
        self._ear = regions.Ear(self._note_message)
        # A limit that one region has hit may be another's too: those of one class share their code object.
        self._limited: set[str] = set()
        self._ends: list = []

    @property
    def regions(self) -> list[Region]:
        return list(self._regions.values())

    def __enter__(self):
        if not regions.tells_compilations():
            told = f"torch {torch.__version__} keeps no record of its compilations; use 2.6 to 2.13"
            raise EnvironmentProblem(told)
        self._ear.listen()
        self._ends = [
            self._ear.stop,
            regions.note_compilations(self._note_compilation),
            regions.watch_compiling(self._watch),
        ]
        self.on = True
        return self

    def __exit__(self, *_):
        self.on = False
        for end in reversed(self._ends):
            end()

    def _watch(self, compile, given):
        if given is self._unwatched:
            return compile(given)
        thread, whole = self._thread, self._thread.given
        if whole is None and (inspect.isclass(given) or isinstance(given, torch.nn.Module)):
            thread.given = given
        try:
            compiled = compile(given)
        finally:
            thread.given = whole
        again = inspect.isclass(whole) and given is getattr(whole, "_call_impl", None)
        if again or not isinstance(compiled, FunctionType):
            return compiled
        if whole is None:
            whole = _module_of(given)
        return self._around(compiled, self._region(whole), whole)

    def _region(self, model) -> Region:
        site, options = _asked()
        region = Region(_name(model), _code(model), site, options)
        key = (region.name, region.code, site, *sorted(options.items()))
        with self._lock:
            region = self._regions.setdefault(key, region)
            region.times += 1
        return region

    def _around(self, compiled, region: Region, model):
        call, accepted = self._call, regions.acceptor(model)

        @functools.wraps(compiled)
        def shell(*arguments, **named):
            __tracebackhide__ = True
            return call(region, accepted, compiled, arguments, named)

        # A program that looks under the compiled function is to find what it would find without us.
        if hasattr(compiled, "__wrapped__"):
            shell.__wrapped__ = compiled.__wrapped__
        regions.keep_compiled(shell, compiled)
        for each in (shell, Watcher._call):
            regions.skip_frames(each.__code__)
        return shell

    def _call(self, region: Region, accepted, compiled, arguments: tuple, named: dict):
        __tracebackhide__ = True
        thread = self._thread
        if thread.inside or not self.on:
            return compiled(*arguments, **named)
        if self._ear.deaf:
            self._ear.listen()
        # Asked before the call, which may change what it was given.
        limited = bool(self._limited) and region.place in self._limited
        refused = limited and accepted(arguments, named) is False
        raised = None
        thread.inside = True
        start = time.perf_counter()
        try:
            return compiled(*arguments, **named)
        except Exception as error:
            # In words: the exception itself would keep alive whatever the program's frames hold.
            raised = failure.tell(error), [type(each).__name__ for each in failure.chain(error)]
            raise
        finally:
            seconds = time.perf_counter() - start
            thread.inside = False
            try:
                with self._lock:
                    self._note(region, seconds, raised, refused)
            except Exception as error:
                # Whatever a release tells in a form that is not known here, the program goes on.
                self.missed = [*self.missed, f"{region.name}: {failure.tell(error)}"][:KEPT_EVENTS]
                thread.log, thread.compilations = [], []

    def _note_message(self, text) -> None:
        if self._thread.inside:
            self._thread.log.append(text())

    def _note_compilation(self, compilation) -> None:
        if self._thread.inside:
            self._thread.compilations.append(compilation)

    def _note(self, region: Region, seconds: float, raised: tuple | None, refused: bool) -> None:
        thread, call = self._thread, region.calls
        region.calls += 1
        if raised and len(region.raised) < KEPT_EVENTS:
            region.raised.append((call, *raised))
        if thread.log or thread.compilations:
            log, frames = "".join(thread.log), regions.frames_of(thread.compilations)
            thread.log, thread.compilations = [], []
            self._note_event(region, call, seconds, torchlog.parse(log), frames, raised is not None)
            return
        region.fates["eager after the limit" if refused else "reuse"] += 1
        if len(region.seconds) < SECONDS_KEPT:
            region.seconds.append(seconds)
        # Dynamo says nothing of a frame that it skips because of a mode.
        if not region.lines and (modes := regions.dispatch_modes()):
            region.lines.append(_line(call, "frame skipped", seconds, modes=modes))

    def _note_event(self, region: Region, call: int, seconds: float, log, frames: list, raised: bool) -> None:
        kept = sum(frame.kept for frame in frames)
        given_up = [frame for frame in frames if not frame.kept]
        if raised and given_up:
            given_up.pop()
        self._limited |= {f"{each.file}:{each.lineno}" for each in log.limits}
        fate = "refused attempt" if log.limits else "new variant" if kept else "frame skipped"
        region.fates[fate] += 1
        region.compile_seconds += seconds
        if len(region.lines) < KEPT_EVENTS:
            region.lines.append(
                _line(
                    call,
                    fate,
                    seconds,
                    kept=kept,
                    graphs=kept,
                    modes=regions.dispatch_modes(),
                    skipped=[[frame.name, frame.file, frame.line, frame.reason] for frame in given_up],
                    breaks=[
                        [each.file, each.lineno, each.source, each.reason, each.frame_skipped]
                        for each in log.breaks
                    ],
                    recompiles=[
                        [each.function, [[item.entry, item.text] for item in each.failures]]
                        for each in log.recompiles
                    ],
                    limits=[
                        [each.setting, each.limit, each.function, each.last_reason] for each in log.limits
                    ],
                )
            )

    def report(self) -> dict:
        """A ledger of each region, and what watching itself costs in each compiled call.

        Compiles a function to learn the latter, so it is for the program's end, while watching is still on.
        """
        called = [region for region in self.regions if region.calls]
        return {
            "torch": str(torch.__version__),
            "regions": [_ledger(region, self.regions) for region in called],
            "not called": [each.name for each in self.regions if not each.calls],
            "missed": self.missed,
            "overhead": self._overhead() | {"past the limit": bool(self._limited)},
        }

    def _overhead(self) -> dict:
        """Seconds that watching adds to a compiled call, on and off in turn in this very process."""

        def nothing(x):
            return x + 1

        try:
            self._unwatched = nothing
            bare = torch.compile(nothing, backend="eager")
            watched = self._around(bare, Region("", None, "", {}), nothing)
            with torch.no_grad():
                return _on_and_off(watched, bare, torch.zeros(1, device="cpu"))
        except Exception as error:
            # A stance or a setting of the program may forbid compiling anything else.
            return {"not measured": failure.tell(error)}


def _on_and_off(watched, bare, argument) -> dict:
    """The median of what a round of calls takes more with the shell than without, and its interval."""
    watched(argument)
    differences = []
    collects = gc.isenabled()
    gc.disable()
    try:
        for number in range(OVERHEAD_ROUNDS):
            # Either goes first in turn, so that a drift falls on both.
            order = (watched, bare) if number % 2 else (bare, watched)
            seconds = {function: _seconds_per_call(function, argument) for function in order}
            differences.append(seconds[watched] - seconds[bare])
    finally:
        if collects:
            gc.enable()
    low, high = (sorted(differences)[rank] for rank in OVERHEAD_RANKS)
    return {
        "added_s_per_call": statistics.median(differences),
        "low": low,
        "high": high,
        "rounds": OVERHEAD_ROUNDS,
        "calls": OVERHEAD_CALLS,
    }


def _seconds_per_call(function, argument) -> float:
    start = time.perf_counter()
    for _ in range(OVERHEAD_CALLS):
        function(argument)
    return (time.perf_counter() - start) / OVERHEAD_CALLS


def forget_variants() -> None:
    """Have Dynamo compile anew whatever is called next."""
    dynamo.forget_variants()


class Since:
    """The regions called since it was made, or since it was last entered as a context."""

    def __init__(self, watcher: Watcher):
        self._watcher = watcher
        self.__enter__()

    def __enter__(self):
        self._marks = {
            id(each): Mark(
                each.calls,
                Counter(each.fates),
                len(each.lines),
                len(each.seconds),
                each.compile_seconds,
                len(each.raised),
            )
            for each in self._watcher.regions
        }
        return self

    def __exit__(self, *_):
        pass

    @property
    def regions(self) -> list[Region]:
        """Those that were called; AssertionError if none was, so that no condition holds of nothing."""
        told = [each.since(self._marks.get(id(each), Mark())) for each in self._watcher.regions]
        called = [each for each in told if each.calls]
        assert called, (
            "no watched region was called; what is compiled while modules are imported is seen with "
            "--complab-watch, or complab_watch = true in pytest's settings"
        )
        return called


def _line(call: int, fate: str, seconds: float, **facts) -> dict:
    nothing = {
        "kept": 0,
        "graphs": 0,
        "modes": [],
        "skipped": [],
        "breaks": [],
        "recompiles": [],
        "limits": [],
    }
    return {"call": call, "fate": fate, "seconds": seconds} | nothing | facts


def _plain(value) -> str:
    """In words that do not change from run to run; a backend by its name."""
    value = getattr(value, "compiler_name", value)
    return getattr(value, "__qualname__", None) or (
        str(value) if " at 0x" not in str(value) else type(value).__name__
    )


def _name(model) -> str:
    if (module := regions.compiled_module(model)) is not None:
        return type(module).__qualname__
    return getattr(model, "__qualname__", type(model).__qualname__)


def _code(model):
    if inspect.isclass(model):
        inner = model.forward if issubclass(model, torch.nn.Module) else model.__call__
        return getattr(inspect.unwrap(inner), "__code__", None)
    return regions.code_of(model)


def _module_of(model):
    """The module that a bound method or a wrapper of torch calls; the model itself if there is none.

    So a copied module comes, of which only the function is compiled anew.
    """
    found = getattr(model, "__wrapped__", None) or getattr(model, "__self__", None)
    called = getattr(model, "__name__", "") in ("_wrapped_call_impl", "_call_impl", "inner")
    return found if called and isinstance(found, torch.nn.Module) else model


_TORCH = os.path.dirname(torch.__file__) + os.sep
_BELOW = (_TORCH, os.path.dirname(__file__) + os.sep, copy.__file__)


def _asked() -> tuple[str, dict]:
    """Where the program asks for `torch.compile`, itself or through torch; its options but the defaults."""
    frame, options = sys._getframe(1), {}
    asking = getattr(torch.compile, "__code__", None)
    while frame is not None and frame.f_code.co_filename.startswith(_BELOW):
        if frame.f_code is asking:
            options = _options(frame.f_locals)
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}", options


def _options(given: dict) -> dict:
    told = {}
    for name, parameter in inspect.signature(torch.compile).parameters.items():
        value = given.get(name, parameter.default)
        # Torch itself fills in this mode where none was asked for.
        if name != "model" and value is not parameter.default and (name, value) != ("mode", "default"):
            told[name] = _plain(value)
    return told


def _ledger(region: Region, others: list[Region]) -> dict:
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
    if region.place.startswith(_TORCH) or dynamo.cache_entries(region.code):
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
