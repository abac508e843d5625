"""What happened, call by call, when a subject ran in several ways side by side?

Each actor is the subject made afresh and run in one way: eager, compiled, in float64, with a value held
still. All make the same call before any makes the next one, from the same seeds, so what they leave behind
can be compared at once and nothing has to be kept. A stream ends with the first call that raises.
"""

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch

from complab.measure import dynamo, dynamo_programs, failure, regions, remains, subject

EAGER = "eager"
_PROCESS = os.getpid()


def _same_model(model: Callable) -> Callable:
    return model


def _same_arguments(index: int, given: tuple, named: dict) -> tuple[tuple, dict]:
    return given, named


def _nothing(index: int, stage: object) -> None:
    return None


@dataclass
class Actor:
    """One way to run a subject.

    ``compiled`` says whether its model goes through `torch.compile`, with the author's options laid over by
    ``options``. ``prepare`` may return another model, ``arguments`` other arguments for a call, and
    ``before`` is called with the number of each call, last before it is made. Each call is made inside of
    ``around``, and its arguments inside of ``making``.
    """

    name: str
    compiled: bool = False
    options: dict = field(default_factory=dict)
    prepare: Callable = _same_model
    arguments: Callable = _same_arguments
    before: Callable = _nothing
    around: Callable = contextlib.nullcontext
    making: Callable = contextlib.nullcontext


@dataclass
class Outcome:
    """One actor's call: seconds, what it left behind, or what it raised."""

    actor: str
    seconds: float = 0.0
    left: remains.Remains | None = None
    error: Exception | None = None
    facts: dict = field(default_factory=dict)
    draws: bool = False
    arguments: tuple = ()
    named: dict = field(default_factory=dict)


class Stage:
    """One actor at work: its own execution of the subject's file, its model, its stream."""

    def __init__(self, actor: Actor, spec: str, seed: int):
        self.actor, self._seed = actor, seed
        seed_all(seed)
        self.subject = subject.load(spec)
        made, options = self._made()
        end_forked()
        self.options = {**options, **actor.options}
        self.model = actor.prepare(made)
        self.counting: regions.Counting | None = None
        self.run = self.model
        # Of the last pass that was timed as a whole.
        self.calls_made = 0
        if actor.compiled and regions.is_compiled(self.options):
            self.run, self.counting = self._compiled()
        self.loss = self.subject.loss
        self.state = remains.State(self.model, self.subject.module)
        self._ambient = Ambient()
        self.again()

    def _made(self) -> tuple[Callable, dict]:
        try:
            return self.subject.make()
        except subject.SubjectProblem:
            raise
        except Exception as error:
            raise subject.SubjectProblem(f"make() raises {failure.tell(error)}") from error

    def _compiled(self) -> tuple[Callable, regions.Counting]:
        try:
            return regions.compile_counting(self.model, self.options)
        except Exception as error:
            raise subject.SubjectProblem(
                f"torch.compile refuses its model or options: {failure.tell(error)}"
            ) from error

    def step(self, watch: Callable | None, keep: bool = True) -> Outcome | None:
        """Make the stream's next call; None at its end. What ``watch`` sees of it goes with the outcome."""
        with self._ambient.restored():
            with self.actor.making():
                item = self._next()
            if item is None:
                return None
            index, arguments, named = item
            arguments, named = self.actor.arguments(index, arguments, named)
            self.actor.before(index, self)
            self.state.clear_gradients(everywhere=self.loss is not None)
            return self._call(index, arguments, named, watch, keep)

    def again(self) -> None:
        """Begin the stream anew with the same model."""
        self._stream = self.subject.stream(self.model, partial(seed_call, self._seed))

    def arguments_of(self, wanted: int) -> tuple[tuple, dict]:
        """The arguments of one call, without making any call before it."""
        with self._ambient.restored():
            item = self._next()
            while item is not None and item[0] < wanted:
                item = self._next()
        if item is None:
            raise subject.SubjectProblem(f"calls() yields no call {wanted} where it did before")
        return item[1:]

    def _next(self) -> tuple[int, tuple, dict] | None:
        try:
            return next(self._stream, None)
        except subject.SubjectProblem:
            raise
        except Exception as error:
            raise subject.SubjectProblem(f"calls() or between() raises {failure.tell(error)}") from error
        finally:
            end_forked()

    def timed_pass(self) -> float:
        """Seconds of all calls of the stream, made anew and timed one by one; nothing is compared."""
        self.again()
        total, self.calls_made = 0, 0
        with self._ambient.restored(), contextlib.nullcontext() if self.actor.compiled else as_eager():
            while (item := self._next()) is not None:
                total += self._timed_call(*item)
                self.calls_made += 1
        return total / 1e9

    def _timed_call(self, index: int, arguments: tuple, named: dict) -> int:
        run, loss = self.run, self.loss
        if loss is not None:
            self.state.clear_gradients(everywhere=True)
        _drain()
        start = time.perf_counter_ns()
        returned = run(*arguments, **named)
        if loss is not None:
            loss(returned).backward()
        _drain()
        return time.perf_counter_ns() - start

    def _call(self, index: int, arguments: tuple, named: dict, watch: Callable | None, keep: bool) -> Outcome:
        told = Outcome(self.actor.name, arguments=arguments, named=named)
        streams = remains.random_streams()
        stance = contextlib.nullcontext() if self.actor.compiled else as_eager()
        watching = watch(self, index, told) if watch else contextlib.nullcontext()
        with stance, self.actor.around(), watching:
            told.seconds, returned, told.error = timed(self.run, self.loss, arguments, named)
        end_forked()
        told.draws = remains.random_streams() != streams
        if keep and not told.error:
            gradients = self.state.gradients() | remains.gradients_of(arguments, named)
            told.left = remains.of_call(returned, arguments, named, gradients)
        return told


def end_forked() -> None:
    """End this process if it is a child that the subject forked: it came back here and may not measure."""
    if os.getpid() != _PROCESS:
        os._exit(0)


def timed(
    run: Callable, loss: Callable | None, arguments: tuple, named: dict
) -> tuple[float, object, Exception | None]:
    """Seconds of one call, with its backward pass where the subject trains; its result, or what it raised."""
    _drain()
    start = time.perf_counter_ns()

    def whole() -> object:
        returned = run(*arguments, **named)
        if loss is not None:
            loss(returned).backward()
        return returned

    returned, error = failure.guarded(whole)
    _drain()
    return (time.perf_counter_ns() - start) / 1e9, returned, error


def _drain() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextlib.contextmanager
def as_eager():
    """Run what is compiled inside of the subject itself eagerly too, where the release can."""
    if not hasattr(torch.compiler, "set_stance"):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


class Ambient:
    """The process-wide settings an actor has left behind: what one sets is not there for the others."""

    def __init__(self):
        self._mine = _ambient()

    @contextlib.contextmanager
    def restored(self):
        """The actor's own settings inside, those of before outside again."""
        outside = _ambient()
        _set_ambient(self._mine)
        try:
            yield
        finally:
            self._mine = _ambient()
            _set_ambient(outside)


def _ambient() -> dict:
    return {
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


_SETTERS = {
    "grad": torch.set_grad_enabled,
    "dtype": torch.set_default_dtype,
    "threads": torch.set_num_threads,
    "precision": torch.set_float32_matmul_precision,
    "deterministic": torch.use_deterministic_algorithms,
}


def _set_ambient(wanted: dict) -> None:
    now = _ambient()
    for name, value in wanted.items():
        # Only what differs: a setter may be seen by guards, or be refused after the first parallel work.
        if now[name] != value:
            _SETTERS[name](value)


def seed_all(seed: int) -> None:
    """Seed every random stream that a subject may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)


def seed_call(seed: int, index: int) -> None:
    """Seeds of one call: the same for every actor, whatever the calls before have drawn."""
    seed_all(seed + index)


def side_by_side(
    actors: list[Actor],
    spec: str,
    seed: int,
    watch: Callable | None = None,
    until: int | None = None,
    keep: bool = True,
    ready: Callable[[list[Stage]], None] | None = None,
) -> Iterator[tuple[int, list[Outcome], list[Stage]]]:
    """Each call of the stream with every actor's outcome, up to the first that raises, or call ``until``.

    ``watch`` goes around calls of compiled actors, see `Watch`; ``ready`` is called before the first call.
    """
    stages = [Stage(actor, spec, seed) for actor in actors]
    if ready is not None:
        ready(stages)
    index = 0
    while until is None or index <= until:
        told = [stage.step(watch if stage.counting else None, keep) for stage in stages]
        if any(each is None for each in told):
            return
        yield index, told, stages
        if any(each.error for each in told):
            return
        index += 1


class Watch:
    """Looks on while a compiled call is made: what Dynamo tried, kept, gave up and logged in it.

    An instance is called with a stage, the call's number and its outcome; the facts go into the outcome.
    """

    def __init__(self, bench, case: str):
        self._bench, self._case = bench, case

    @contextlib.contextmanager
    def __call__(self, stage: Stage, index: int, outcome: Outcome):
        position = self._bench.begin_log(self._case, index)
        counting = stage.counting
        mark, before = dynamo.newest_compilation(), (counting.compiled, counting.runs)
        tried, compiled = dynamo.frame_counts()
        captured = dynamo.graphs_captured()
        modes = dynamo_programs.dispatch_modes()
        try:
            yield
        finally:
            log = self._bench.end_log(position, self._case, index)
            after = dynamo.frame_counts()
            outcome.facts = {
                "log": log,
                "frames": dynamo.frames_since(mark),
                "tried": after[0] - tried,
                "compiled": after[1] - compiled,
                "graphs": counting.compiled - before[0],
                "captured": dynamo.graphs_captured() - captured,
                "runs": counting.runs - before[1],
                "modes": modes,
            }
