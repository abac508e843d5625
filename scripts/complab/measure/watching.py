"""What happens in each compiled region of a program that runs as it is?

Every callable that goes through `torch.compile` while a `Watcher` is on gets a thin shell: it notes the
calls in which Dynamo tried a frame, and counts the others. What Dynamo says in these calls is read from its
own record and from its log, thread by thread. Standard library and torch only.
"""

import copy
import functools
import inspect
import os
import sys
import threading
import time
from collections import Counter
from types import FunctionType

import torch

from complab import torchlog
from complab.errors import EnvironmentProblem
from complab.measure import dynamo, dynamo_programs, failure, overhead, regions, watched
from complab.measure.watched import Mark, Region

# So many calls with an event are kept one by one: a program that goes on compiling has shown it by then.
KEPT_EVENTS = 1000
SECONDS_KEPT = 4096


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
        self._ear = dynamo_programs.Ear(self._note_message)
        # A limit that one region has hit may be another's too: those of one class share their code object.
        self._limited: set[str] = set()
        self._ends: list = []

    @property
    def regions(self) -> list[Region]:
        return list(self._regions.values())

    def __enter__(self):
        if not dynamo_programs.tells_compilations():
            told = f"torch {torch.__version__} keeps no record of its compilations; use 2.6 to 2.13"
            raise EnvironmentProblem(told)
        self._ear.listen()
        self._ends = [
            self._ear.stop,
            dynamo_programs.note_compilations(self._note_compilation),
            dynamo_programs.watch_compiling(self._watch),
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
        dynamo_programs.keep_compiled(shell, compiled)
        for each in (shell, Watcher._call):
            dynamo_programs.skip_frames(each.__code__)
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
            log, frames = "".join(thread.log), dynamo.frames_of(thread.compilations)
            thread.log, thread.compilations = [], []
            self._note_event(region, call, seconds, torchlog.parse(log), frames, raised is not None)
            return
        region.fates["eager after the limit" if refused else "reuse"] += 1
        if len(region.seconds) < SECONDS_KEPT:
            region.seconds.append(seconds)
        # Dynamo says nothing of a frame that it skips because of a mode.
        if not region.lines and (modes := dynamo_programs.dispatch_modes()):
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
                    modes=dynamo_programs.dispatch_modes(),
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
            "regions": [watched.ledger(region, self.regions) for region in called],
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
            shell = self._around(bare, Region("", None, "", {}), nothing)
            with torch.no_grad():
                return overhead.added(shell, bare, torch.zeros(1, device="cpu"))
        except Exception as error:
            # A stance or a setting of the program may forbid compiling anything else.
            return {"not measured": failure.tell(error)}


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


_BELOW = (watched.TORCH, os.path.dirname(__file__) + os.sep, copy.__file__)


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
