"""What happens in each compiled region of a program that runs as it is?

Every callable that goes through `torch.compile` while a `Watcher` is on gets a thin shell: it notes the
calls in which Dynamo tried a frame, and counts the others. What Dynamo says in these calls is read from its
own state and from its log. Standard library and torch only.
"""

import functools
import gc
import io
import math
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

import torch

from complab import mechanisms, torchlog
from complab.diagnose import capture
from complab.diagnose.judgement import FAIL, NO_EVIDENCE, NOT_JUDGED, PASS, Judgement
from complab.measure import dynamo, failure, regions

# So many calls with an event are kept one by one: a program that goes on compiling has shown it by then.
KEPT_EVENTS = 1000
SECONDS_KEPT = 4096
OUTSIDE = "it cannot be judged from outside the program"
OVERHEAD_ROUNDS, OVERHEAD_CALLS = 15, 2000


@dataclass
class Region:
    """One callable under `torch.compile`: what it is, and what its calls did."""

    name: str
    place: str
    model: object
    options: dict
    calls: int = 0
    fates: Counter = field(default_factory=Counter)
    lines: list[dict] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    compile_seconds: float = 0.0
    raised: list[tuple[int, str, list[str]]] = field(default_factory=list)


class Watcher:
    """Watches while the context lasts; `report` tells what was seen."""

    def __init__(self):
        self.regions: list[Region] = []
        self.on = True
        self._compile = torch.compile
        self._log = io.StringIO()
        self._depth = 0
        # A limit that one region has hit may be another's too: those of one class share their code object.
        self._limited: set[str] = set()
        self._stop = None

    def __enter__(self):
        torch.compile = self._watching_compile
        # Beside what the program's own settings print, not in place of it.
        self._stop = dynamo.listen(self._log)
        return self

    def __exit__(self, *_):
        torch.compile = self._compile
        self._stop()

    def _watching_compile(self, model=None, **options):
        if model is None:
            # The decorator with arguments.
            return lambda inner: self._watching_compile(inner, **options)
        compiled = self._compile(model, **options)
        region = Region(_name(model), _place(model), model, options)
        self.regions.append(region)
        return self._shell(compiled, region)

    def _shell(self, compiled, region: Region):
        if isinstance(compiled, torch.nn.Module):
            inner = compiled.forward
            compiled.forward = functools.wraps(inner)(functools.partial(self._call, region, inner))
            return compiled

        @functools.wraps(compiled)
        def shell(*arguments, **named):
            return self._call(region, compiled, *arguments, **named)

        return shell

    def _call(self, region: Region, compiled, /, *arguments, **named):
        if not self.on or self._depth:
            return compiled(*arguments, **named)
        self._depth += 1
        before, start = _seen(), time.perf_counter()
        mark = dynamo.newest_compilation()
        position = self._log.tell()
        try:
            returned = compiled(*arguments, **named)
        except Exception as error:
            self._note_error(region, error)
            raise
        finally:
            self._depth -= 1
            seconds = time.perf_counter() - start
            if _seen() != before or self._log.tell() != position:
                self._note_event(region, seconds, mark, position)
            else:
                self._note_quiet(region, seconds, arguments, named)
            region.calls += 1
        return returned

    def _note_error(self, region: Region, error: Exception) -> None:
        names = [type(each).__name__ for each in failure.chain(error)]
        region.raised.append((region.calls, failure.tell(error), names))

    def _note_quiet(self, region: Region, seconds: float, arguments: tuple, named: dict) -> None:
        fate = "reuse"
        if region.place in self._limited:
            entries = regions.variants(region.model)
            refused = regions.refusals(region.model, arguments, named)
            if entries and refused is not None and len(refused) == entries:
                fate = "eager after the limit"
        region.fates[fate] += 1
        if len(region.seconds) < SECONDS_KEPT:
            region.seconds.append(seconds)

    def _note_event(self, region: Region, seconds: float, mark, position: int) -> None:
        log = torchlog.parse(self._log.getvalue()[position:])
        frames = dynamo.frames_since(mark) or []
        kept = sum(frame.kept for frame in frames)
        given_up = [frame for frame in frames if not frame.kept]
        if region.raised and region.raised[-1][0] == region.calls and given_up:
            given_up.pop()
        self._limited |= {f"{each.file}:{each.lineno}" for each in log.limits}
        fate = "refused attempt" if log.limits else "new variant" if kept else "frame skipped"
        region.fates[fate] += 1
        region.compile_seconds += seconds
        if len(region.lines) < KEPT_EVENTS:
            region.lines.append(
                {
                    "call": region.calls,
                    "fate": fate,
                    "kept": kept,
                    "graphs": kept,
                    "modes": dynamo.dispatch_modes(),
                    "seconds": seconds,
                    "skipped": [[frame.name, frame.file, frame.line, frame.reason] for frame in given_up],
                    "breaks": [
                        [each.file, each.lineno, each.source, each.reason, each.frame_skipped]
                        for each in log.breaks
                    ],
                    "recompiles": [
                        [each.function, [[item.entry, item.text] for item in each.failures]]
                        for each in log.recompiles
                    ],
                    "limits": [
                        [each.setting, each.limit, each.function, each.last_reason] for each in log.limits
                    ],
                }
            )

    def report(self) -> dict:
        """A ledger of each region, and what watching itself costs in each compiled call."""
        told = [_ledger(region) for region in self.regions if region.calls]
        unused = [region.name for region in self.regions if not region.calls]
        return {
            "torch": str(torch.__version__),
            "regions": told,
            "never called": unused,
            "overhead": self._overhead(),
        }

    def _overhead(self) -> dict:
        """Seconds that watching adds to a compiled call, on and off in turn in this very process."""

        def nothing(x):
            return x + 1

        with torch.no_grad():
            watched = self._watching_compile(nothing, backend="eager")
            ratio = _on_and_off(self, watched, torch.zeros(1))
        self.regions.pop()
        return ratio


def _on_and_off(watcher: Watcher, function, argument) -> dict:
    function(argument)
    differences = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(OVERHEAD_ROUNDS):
            seconds = {}
            for watcher.on in (True, False):
                start = time.perf_counter()
                for _ in range(OVERHEAD_CALLS):
                    function(argument)
                seconds[watcher.on] = (time.perf_counter() - start) / OVERHEAD_CALLS
            differences.append(seconds[True] - seconds[False])
    finally:
        watcher.on = True
        gc.enable()
    mean = statistics.fmean(differences)
    # Student's t for fourteen degrees of freedom and 95 percent.
    half = 2.145 * statistics.stdev(differences) / math.sqrt(len(differences))
    return {"added_s_per_call": mean, "low": mean - half, "high": mean + half, "rounds": OVERHEAD_ROUNDS}


def _seen() -> tuple[int, int]:
    """Frames tried and graphs captured so far: under fullgraph only the second moves."""
    return dynamo.frame_counts()[0], dynamo.graphs_captured()


def _name(model) -> str:
    if (module := regions.compiled_module(model)) is not None:
        return type(module).__qualname__
    return getattr(model, "__qualname__", type(model).__qualname__)


def _place(model) -> str:
    code = regions.code_of(model)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _ledger(region: Region) -> dict:
    stream = capture.Stream(region.lines, region.calls, region.fates, graphs_run=False)
    levels = {"RUNS": _runs(region), "CORRECT": Judgement(NOT_JUDGED, OUTSIDE)}
    if levels["RUNS"].verdict == PASS:
        levels["CAPTURED"] = _captured(region, stream)
    if "CAPTURED" in levels and levels["CAPTURED"].verdict == PASS:
        levels["STABLE"] = capture.stable(stream, [])
    failing = next((level for level, each in levels.items() if each.verdict == FAIL), None)
    after = Judgement(NOT_JUDGED, "an earlier level did not pass")
    for level in ("CAPTURED", "STABLE"):
        levels.setdefault(level, after)
    levels["WORTH IT"] = Judgement(NOT_JUDGED, OUTSIDE)
    steady = statistics.median(region.seconds) if region.seconds else None
    return {
        "region": region.name,
        "place": region.place,
        "options": {key: str(value) for key, value in region.options.items()},
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
            "median_later_call_s": steady,
        },
    }


def _captured(region: Region, stream: capture.Stream) -> Judgement:
    eager = region.fates["eager after the limit"]
    if not region.lines and eager:
        told = f"{eager} calls ran eager: another region had used up the limit of the code they share"
        return Judgement(NO_EVIDENCE, told)
    return capture.captured(stream)


def _runs(region: Region) -> Judgement:
    if not region.raised:
        return Judgement(PASS, f"{region.calls} calls, none raised")
    call, told, names = region.raised[0]
    word = mechanisms.of_error(names, bool(region.options.get("fullgraph")))
    if not word and any(name.startswith(("BackendCompilerFailed", "InductorError")) for name in names):
        word = "inductor-error"
    if not word:
        return Judgement(NO_EVIDENCE, f"call {call} raises {told}; eager may do so too")
    return Judgement(FAIL, f"call {call} raises {told}", word)


def text(told: dict) -> str:
    """The ledgers for a terminal, one region after another."""
    lines = [f"complab watch: {len(told['regions'])} compiled regions (torch {told['torch']})"]
    for each in told["regions"]:
        lines += ["", f"{each['region']}  {each['place']}"]
        for level in each["levels"]:
            lines.append(f"  {level['level']:9} {level['verdict']:11}  {level['evidence']}")
        cost = each["cost"]
        later = cost["median_later_call_s"]
        lines.append(
            f"  cost      {each['stability']['calls']} calls, {cost['compiling_calls_s']:.3g} s in "
            "those that compiled, "
            + ("no later call" if later is None else f"{later * 1e6:.3g} µs a later call")
        )
        failing = each["first_failing_level"]
        lines.append(f"  {failing} fails, {each['mechanism']}" if failing else "  no failure seen")
    if told["never called"]:
        lines += ["", f"compiled and never called: {', '.join(told['never called'])}"]
    cost = told["overhead"]
    lines += [
        "",
        f"watching adds {cost['added_s_per_call'] * 1e6:.2f} "
        f"[{cost['low'] * 1e6:.2f}, {cost['high'] * 1e6:.2f}] µs to a compiled call",
    ]
    return "\n".join(lines)
