"""What happens in each compiled region of a program that runs as it is?

Every callable that goes through `torch.compile` while a `Watcher` is on gets a thin shell: it notes the
calls in which Dynamo tried a frame, and counts the others. What Dynamo says in these calls is read from its
own record and from its log, thread by thread. Standard library and torch only.
"""

import functools
import gc
import inspect
import io
import os
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import torch

from complab import mechanisms, torchlog
from complab.diagnose import capture
from complab.diagnose.judgement import FAIL, NO_EVIDENCE, NOT_JUDGED, PASS, Judgement
from complab.errors import EnvironmentProblem, counted
from complab.measure import dynamo, failure, regions

# So many calls with an event are kept one by one: a program that goes on compiling has shown it by then.
KEPT_EVENTS = 1000
SECONDS_KEPT = 4096
OUTSIDE = "it cannot be judged from outside the program"
OVERHEAD_ROUNDS, OVERHEAD_CALLS = 41, 400
# The 14th and the 28th of 41 differences: an interval of their median of more than 95 percent, whatever
# their distribution.
OVERHEAD_RANKS = (13, 27)


@dataclass
class Region:
    """What one `torch.compile` in the program's source compiles, and what its calls did.

    A loop that compiles objects of one class, or one function again and again, makes one region: they share
    the code object with which Dynamo keeps its variants. `times` tells how often it was compiled.
    """

    name: str
    place: str
    site: str
    options: dict
    times: int = 0
    calls: int = 0
    disabled: bool = False
    fates: Counter = field(default_factory=Counter)
    lines: list[dict] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    compile_seconds: float = 0.0
    raised: list[tuple[int, str, list[str]]] = field(default_factory=list)

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
            self.place,
            self.site,
            self.options,
            self.times,
            self.calls - mark.calls,
            self.disabled,
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
        self.log: list[str] = []
        self.compilations: list = []


class _Heard(io.TextIOBase):
    """A log stream that keeps what is written for the thread that writes it."""

    def __init__(self, thread: _Thread):
        self._thread = thread

    def write(self, text: str) -> int:
        if self._thread.inside:
            self._thread.log.append(text)
        return len(text)


class Watcher:
    """Watches while the context lasts; `report` tells what was seen.

    EnvironmentProblem if this torch does not tell its compilations.
    """

    def __init__(self):
        self.on = False
        self.missed: list[str] = []
        self._regions: dict[tuple, Region] = {}
        self._compile = torch.compile
        self._lock = threading.Lock()
        self._thread = _Thread()
        # A limit that one region has hit may be another's too: those of one class share their code object.
        self._limited: set[str] = set()
        self._ends: list = []

    @property
    def regions(self) -> list[Region]:
        return list(self._regions.values())

    def __enter__(self):
        if not dynamo.tells_compilations():
            told = f"torch {torch.__version__} keeps no record of its compilations; use 2.6 to 2.13"
            raise EnvironmentProblem(told)
        torch.compile = self._watching_compile()
        # Beside what the program's own settings print, not in place of it.
        self._ends = [dynamo.listen(_Heard(self._thread)), dynamo.note_compilations(self._note_compilation)]
        self.on = True
        return self

    def __exit__(self, *_):
        self.on = False
        torch.compile = self._compile
        for end in self._ends:
            end()

    def _watching_compile(self):
        # With the signature of the real one, which libraries ask for.
        @functools.wraps(self._compile)
        def compile(model=None, **options):
            if model is None:
                # The decorator with arguments.
                return lambda inner: compile(inner, **options)
            return self._shell(model, self._compile(model, **options), self._region(model, options))

        return compile

    def _region(self, model, options: dict) -> Region:
        told = {key: _plain(value) for key, value in options.items()}
        region = Region(_name(model), _place(model), _site(), told)
        key = (region.name, region.place, region.site, *sorted(told.items()))
        with self._lock:
            region = self._regions.setdefault(key, region)
            region.times += 1
        return region

    def _shell(self, model, compiled, region: Region):
        if compiled is model and not inspect.isclass(model):
            # Disabled, by an option or by the environment: it has to stay the very object that it was.
            region.disabled = True
            return compiled
        if inspect.isclass(compiled):
            compiled.__call__ = self._around(compiled.__call__, region, model)
        elif isinstance(compiled, torch.nn.Module):
            compiled.forward = self._around(compiled.forward, region, model)
        else:
            return self._around(compiled, region, model)
        return compiled

    def _around(self, compiled, region: Region, model):
        call = self._call

        @functools.wraps(compiled)
        def shell(*arguments, **named):
            __tracebackhide__ = True
            return call(region, model, compiled, arguments, named)

        # A program that looks under the compiled function is to find what it would find without us.
        if hasattr(compiled, "__wrapped__"):
            shell.__wrapped__ = compiled.__wrapped__
        for each in (shell, Watcher._call):
            dynamo.skip_frames(each.__code__)
        return shell

    def _call(self, region: Region, model, compiled, arguments: tuple, named: dict):
        __tracebackhide__ = True
        thread = self._thread
        if thread.inside or not self.on:
            return compiled(*arguments, **named)
        if not dynamo.listening():
            dynamo.listen_again()
        # Asked before the call, which may change what it was given.
        refused = region.place in self._limited and _refused(model, arguments, named)
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

    def _note_compilation(self, compilation) -> None:
        if self._thread.inside:
            self._thread.compilations.append(compilation)

    def _note(self, region: Region, seconds: float, raised: tuple | None, refused: bool) -> None:
        thread, call = self._thread, region.calls
        region.calls += 1
        if raised and len(region.raised) < KEPT_EVENTS:
            region.raised.append((call, *raised))
        if thread.log or thread.compilations:
            log, frames = "".join(thread.log), dynamo.frames_of(thread.compilations)
            thread.log, thread.compilations = [], []
            self._note_event(region, call, seconds, torchlog.parse(log), frames, raised is not None)
            return
        region.fates["eager after the limit" if refused else "reuse"] += 1
        if len(region.seconds) < SECONDS_KEPT:
            region.seconds.append(seconds)
        # Dynamo says nothing of a frame that it skips because of a mode.
        if not region.lines and (modes := dynamo.dispatch_modes()):
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
                    modes=dynamo.dispatch_modes(),
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
            "not called": [each.name for each in self.regions if not each.calls and not each.disabled],
            "disabled": [each.name for each in self.regions if each.disabled],
            "missed": self.missed,
            "overhead": self._overhead(),
        }

    def _overhead(self) -> dict:
        """Seconds that watching adds to a compiled call, on and off in turn in this very process."""

        def nothing(x):
            return x + 1

        compiled = self._compile(nothing, backend="eager")
        watched = self._around(compiled, Region("", "", "", {}), nothing)
        try:
            with torch.no_grad():
                return _on_and_off(watched, compiled, torch.zeros(1, device="cpu"))
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


def _refused(model, arguments: tuple, named: dict) -> bool:
    """Whether every kept variant refuses these arguments; False where that is not told."""
    entries = regions.variants(model)
    refusals = regions.refusals(model, arguments, named)
    return bool(entries) and refusals is not None and len(refusals) == entries


def _plain(value) -> str:
    return getattr(value, "__qualname__", None) or (
        str(value) if " at 0x" not in str(value) else type(value).__name__
    )


def _name(model) -> str:
    if (module := regions.compiled_module(model)) is not None:
        return type(module).__qualname__
    return getattr(model, "__qualname__", type(model).__qualname__)


def _place(model) -> str:
    if inspect.isclass(model):
        inner = model.forward if issubclass(model, torch.nn.Module) else model.__call__
        code = getattr(inspect.unwrap(inner), "__code__", None)
    else:
        code = regions.code_of(model)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


_NOT_THE_PROGRAM = (os.path.dirname(torch.__file__) + os.sep, __file__)


def _site() -> str:
    """Where the program says `torch.compile`, or something of torch that does."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_PROGRAM):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


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
    sharing = [each for each in others if each.place == region.place and each.graphs]
    if region.place and sharing:
        # What Dynamo keeps belongs to the code object, whichever region made it compile.
        found = capture.captured(sharing[0].stream())
        found.evidence += f", by the region compiled at {sharing[0].site}, which shares its code"
        return found
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
    named = {"not called": "never called on its own", "disabled": "not compiled, since disabled"}
    lines += [f"\n{words}: {', '.join(told[key])}" for key, words in named.items() if told[key]]
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
        f"  {failing} fails, {told['mechanism']}" if failing else "  no failure seen",
    ]


def _overhead_line(told: dict) -> str:
    if "not measured" in told:
        return f"what watching adds to a compiled call could not be measured: {told['not measured']}"
    added, low, high = (told[key] * 1e6 for key in ("added_s_per_call", "low", "high"))
    return (
        f"watching adds {added:.2f} [{low:.2f}, {high:.2f}] µs to a compiled call: median and 95% interval "
        f"of {told['rounds']} rounds, {told['calls']} calls on and {told['calls']} off in each"
    )
