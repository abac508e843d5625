"""How does a subject fare in each of the ways that a diagnosis asks for?

The script of a diagnosis's processes: `timed` makes the runs that its settings list and notes what came of
each call at once, so that a process that dies or hangs leaves word of where. Standard library and torch
only.
"""

import contextlib
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from inspect import isfunction, unwrap
from pathlib import Path

import torch

from complab import torchlog
from complab.diagnose.judgement import MARK
from complab.errors import counted
from complab.measure import capture, changes, dynamo, failure, moves, regions, remains, search, subject
from complab.measure.passes import EAGER, Actor, Outcome, Stage, Watch, side_by_side

NEW, REUSE, REFUSED, AFTER_LIMIT, SKIPPED, NOTHING = FATES = (
    "new variant",
    "reuse",
    "refused attempt",
    "eager after the limit",
    "frame skipped",
    "nothing compiled",
)
# Where and name of each value that eager itself does not repeat: it is compared with nothing.
RESTLESS: set[tuple[str, str]] = set()
# The largest few tell what differs; a model may have thousands of tensors.
DIFFERENCES = 5
MINIMUM_ROUNDS = 5
MAXIMUM_ROUNDS = 200
# A stream so long that its rounds take this many times the budget gets fewer of them, down to the second.
PATIENCE = 4
FEWEST_ROUNDS = 2


class Notes:
    """Facts as JSON lines, each on disk before the next call begins, with the seconds until it was noted."""

    def __init__(self, path: Path):
        self._file, self._start = path.open("a", encoding="utf-8"), time.monotonic()

    def add(self, **facts) -> None:
        facts["at"] = round(time.monotonic() - self._start, 3)
        self._file.write(json.dumps(facts, ensure_ascii=False, default=str) + "\n")
        self._file.flush()


def timed(bench) -> None:
    """Make the runs of the bench's settings, see `RUNS`; what cannot be used is noted and ends them."""
    wanted = bench.settings["diagnosis"]
    notes = Notes(Path(wanted["notes"]))
    RESTLESS.update(map(tuple, wanted["restless"]))
    with _quiet():
        try:
            for number, run in enumerate(wanted["runs"]):
                notes.add(begin=run["label"])
                dynamo.forget_variants()
                with changes.settings(run.get("settings", {})):
                    RUNS[run["kind"]](bench, wanted["spec"], run, notes, f"run {number}")
                notes.add(end=run["label"])
        except subject.SubjectProblem as problem:
            notes.add(unusable=str(problem))
        except (SystemExit, KeyboardInterrupt) as ending:
            notes.add(unusable=f"it ends the process: {type(ending).__name__} {ending}".rstrip())
        except Exception as error:
            # What the subject's own file raises when it is executed; anything else is a fault of this code.
            if not _of_subject(error, wanted["spec"]):
                notes.add(fault=failure.tell(error))
                raise
            notes.add(unusable=f"executing it raises {failure.tell(error)}")
        finally:
            _end_left_behind()


def _end_left_behind() -> None:
    """End what the subject started and left running: it would hold this process's output open."""
    if MARK not in os.environ:
        return
    ours = f"{MARK}={os.environ[MARK]}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(process.name) != os.getpid() and ours in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def _of_subject(error: BaseException, spec: str) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    own = {Path(__file__).parent, Path(__file__).parents[1]}
    last = next((frame for frame in reversed(frames) if Path(frame.filename).parent in own), None)
    return last is None or Path(last.filename) == Path(subject.__file__) or isinstance(error, SyntaxError)


@contextlib.contextmanager
def _quiet():
    """What a subject prints goes nowhere: it may be any amount, and the terminal is the diagnosis's."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _actor(run: dict) -> Actor:
    """The actor that a run asks for beside eager."""
    return changes.actor(run.get("actor", "compiled"), run)


def eager(bench, spec: str, run: dict, notes: Notes, case: str) -> None:
    """The program without torch.compile, twice: does it run, does it repeat itself, what moves?"""
    moved, actors = moves.Moves(), [Actor(EAGER), Actor("again")]
    told = side_by_side(
        actors, spec, bench.settings["seed"], ready=lambda stages: notes.add(subject=_described(stages[0]))
    )
    unjudged = False
    for index, (first, second), stages in told:
        if not first.error:
            names = moves.parameter_names(regions.code_of(stages[0].model))
            state = stages[0].state
            moved.note(first.arguments, first.named, state.now, names, dict(state.objects()))
        found = _differences(first, second, stages)
        notes.add(
            call=index,
            seconds={EAGER: first.seconds},
            error=_errors([first, second], spec),
            **_told(found, first, second),
        )
        RESTLESS.update((each.where, each.name) for each in found if each.is_unrest)
        unjudged = unjudged or not (first.error or second.error or _judged(first))
    notes.add(moved=moved.moved(), restless=sorted(RESTLESS), unjudged=unjudged)


def _judged(outcome: Outcome) -> bool:
    """Whether anything is left to compare of what the call returned, or else of its arguments."""
    for where, values in (
        (remains.RETURNED, outcome.left.returned),
        (remains.ARGUMENT, outcome.left.arguments),
    ):
        if names := {name for name, value in values.items() if value is not None}:
            return any((where, name) not in RESTLESS for name in names)
    return True


def _described(stage: Stage) -> dict:
    model, options = stage.model, stage.options
    return {
        "model": type(model).__qualname__ if isinstance(model, torch.nn.Module) else _named(model),
        "is_module": isinstance(model, torch.nn.Module),
        "options": {key: _plain(value) for key, value in options.items()},
        "trains": stage.loss is not None,
        "real_calls": stage.subject.real_calls,
        "tolerance": stage.subject.tolerance,
        "closure": list(unwrap(model).__code__.co_freevars) if isfunction(model) else [],
        "between": hasattr(stage.subject.module, "between"),
        "dtypes": sorted({str(each.dtype) for each in _tensors_of(stage)}),
    }


def _tensors_of(stage: Stage) -> list[torch.Tensor]:
    return [value for value in stage.state.now.values() if isinstance(value, torch.Tensor)]


def _named(model: Callable) -> str:
    return getattr(model, "__qualname__", type(model).__qualname__)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if isinstance(value, bool | int | float | str | None) else _named(value)


def compiled(bench, spec: str, run: dict, notes: Notes, case: str) -> None:
    """Eager and a changed or unchanged compiled form side by side, and the steady state if all went well."""
    actors, stages = [Actor(EAGER), _actor(run)], []
    watch, fates, fine = Watch(bench, case), Fates(), True
    told = side_by_side(actors, spec, bench.settings["seed"], watch, run.get("until"))
    for index, (expected, actual), stages in told:
        differences = _differences(expected, actual, stages)
        found = _told(differences, expected, actual)
        fine = fine and not actual.error and not expected.error and found["within"]
        noted = fates.of(actual, stages[1])
        notes.add(
            call=index,
            seconds={EAGER: expected.seconds, "compiled": actual.seconds},
            error=_errors([expected, actual], spec),
            draws=expected.draws,
            **found,
            **noted,
        )
        fine = fine and not any(noted.get(fact) for fact in ("breaks", "skipped", "limits"))
    notes.add(streamed=True)
    if run.get("steady") and fine and stages and stages[1].counting:
        steady, error = failure.guarded(lambda: _steady(stages, run["steady"]))
        notes.add(steady=steady or {"problem": f"made again, the calls raise {failure.tell(error)}"})


def _differences(expected: Outcome, actual: Outcome, stages: list[Stage]) -> list[remains.Difference]:
    """In what two outcomes, and the states after them, differ; nothing where one of them raised."""
    tolerance = stages[0].subject.tolerance
    names = set().union(*(stage.state.look() for stage in stages))
    if expected.error or actual.error:
        return []
    found = remains.differences(expected.left, actual.left, tolerance)
    before, after = (
        {name: stage.state.now[name] for name in names if name in stage.state.now} for stage in stages[:2]
    )
    found += remains.compared(remains.STATE, before, after, tolerance)
    return [each for each in found if (each.where, each.name) not in RESTLESS]


def _told(found: list[remains.Difference], expected: Outcome, actual: Outcome) -> dict:
    """The worst few differences of two outcomes, and whether all are within."""
    ran = not (expected.error or actual.error)
    worst = sorted(found, key=lambda each: each.within)[:DIFFERENCES]
    return {
        "differences": [each.as_dict() for each in worst],
        "within": ran and all(each.within for each in found),
        "rng_same": not ran or expected.left.rng == actual.left.rng,
    }


def _errors(outcomes: list[Outcome], spec: str) -> dict:
    return {each.actor: _error(each.error, spec) for each in outcomes if each.error}


def _error(error: Exception, spec: str) -> dict:
    """The exception, its chain to the root cause, and the subject's own line it came through last."""
    chain = failure.chain(error)
    return {
        "told": failure.tell(error),
        "chain": [[type(each).__name__, " ".join(str(each).split())[:2000]] for each in chain],
        "where": _place_in(chain, spec),
    }


def _place_in(chain: list[BaseException], spec: str) -> list | None:
    """File, line and source of the innermost frame below the subject's folder, of the root cause first."""
    folder = Path(spec).resolve().parent if spec.endswith(".py") else None
    for error in reversed(chain):
        frames = traceback.extract_tb(error.__traceback__)
        for frame in reversed(frames):
            if folder and Path(frame.filename).resolve().is_relative_to(folder):
                return [frame.filename, frame.lineno, frame.line or ""]
    return None


class Fates:
    """What became of each compiled call, by what Dynamo kept and which graphs ran, never by the clock."""

    def __init__(self):
        self._limited = False

    def of(self, outcome: Outcome, stage: Stage) -> dict:
        """The call's fate and facts as they are noted; nothing of an actor that compiles nothing."""
        facts = outcome.facts
        if not facts:
            return {}
        log: torchlog.Log = facts["log"]
        frames = facts["frames"]
        kept = facts["compiled"] if frames is None else sum(frame.kept for frame in frames)
        given_up = [frame for frame in frames or [] if not frame.kept]
        if outcome.error and given_up:
            # What it raised went to the caller, so it was not skipped.
            given_up.pop()
        self._limited = self._limited or bool(log.limits)
        fate = self._fate(outcome, kept, facts, bool(log.limits))
        refused = fate in (REFUSED, AFTER_LIMIT) and stage.actor.compiled
        return {
            "fate": fate,
            "kept": kept,
            "graphs": facts["graphs"],
            "captured": facts["captured"],
            "runs": facts["runs"],
            "modes": facts["modes"],
            "skipped": [[capture.name_of(frame), frame.file, frame.line, frame.reason] for frame in given_up],
            "breaks": [
                [each.file, each.lineno, each.source, each.reason, each.frame_skipped] for each in log.breaks
            ],
            "recompiles": [
                [each.function, [[item.entry, item.text] for item in each.failures]]
                for each in log.recompiles
            ],
            "limits": [[each.setting, each.limit, each.function, each.last_reason] for each in log.limits],
            "refusals": regions.refusals(stage.model, outcome.arguments, outcome.named) if refused else None,
        }

    def _fate(self, outcome: Outcome, kept: int, facts: dict, limited: bool) -> str:
        if outcome.error:
            return "raised"
        if limited:
            return REFUSED
        if kept:
            return NEW
        if facts["runs"]:
            return REUSE
        if facts["tried"]:
            return SKIPPED
        return AFTER_LIMIT if self._limited else NOTHING


def _steady(stages: list[Stage], budget: float) -> dict:
    """Seconds of whole passes over the stream, interleaved: eager, compiled and eager again.

    As many rounds as the seconds of the budget allow; their order turns, so that drift falls on all alike. A
    round in which something was compiled tells nothing of the steady state and is left out.
    """
    turn = [(EAGER, stages[0]), ("compiled", stages[1]), ("control", stages[0])]
    counting = stages[1].counting
    rounds: list[dict[str, float]] = []
    gc.collect()
    gc.disable()
    try:
        start = time.monotonic()
        for number in range(-1, MAXIMUM_ROUNDS):
            before = counting.compiled
            order = turn if number % 2 == 0 else reversed(turn)
            seconds = {name: stage.timed_pass() for name, stage in order}
            if number >= 0 and counting.compiled == before:
                rounds.append(seconds)
            elapsed = time.monotonic() - start
            enough = len(rounds) >= FEWEST_ROUNDS and elapsed > PATIENCE * budget
            if elapsed > budget and (number + 1 >= MINIMUM_ROUNDS or enough):
                break
    finally:
        gc.enable()
    if len(rounds) < FEWEST_ROUNDS:
        compiling = number + 1 - len(rounds)
        return {"problem": f"of {counted(number + 1, 'repetition')} of the calls {compiling} compile anew"}
    return {
        "rounds": {name: [seconds[name] for seconds in rounds] for name, _ in turn},
        "calls": stages[0].calls_made,
    }


def precision(bench, spec: str, run: dict, notes: Notes, case: str) -> None:
    """Eager, compiled, float64 and eager from slightly moved inputs: how far is each from float64?

    Told of the values that the run names by place and name.
    """
    actors = [Actor(EAGER), Actor("compiled", compiled=True), changes.in_float64(), changes.nudged()]
    tolerance, names = subject.DEFAULT_TOLERANCE, set(map(tuple, run["names"]))
    for index, told, stages in side_by_side(actors, spec, bench.settings["seed"], None, run.get("until")):
        if errors := _errors(told, spec):
            notes.add(call=index, error=errors)
            return
        for stage in stages:
            stage.state.look()

        def largest(one: int, other: int, widened: bool = False, told=told, stages=stages) -> dict:
            found = remains.differences(told[one].left, told[other].left, tolerance, widened)
            states = (stages[one].state.now, stages[other].state.now)
            found += remains.compared(remains.STATE, *states, tolerance, widened)
            return _largest([each for each in found if (each.where, each.name) in names])

        notes.add(
            call=index,
            eager_error=largest(2, 0, widened=True),
            compiled_error=largest(2, 1, widened=True),
            nudged=largest(0, 3),
            difference=largest(0, 1),
        )


def _largest(found: list[remains.Difference]) -> dict:
    """The largest absolute difference and the largest relative one; values without a size decide."""
    sized = [each for each in found if each.largest == each.largest]
    return {
        "absolute": max((each.largest for each in sized), default=0.0),
        "relative": max((each.relative for each in sized), default=0.0),
        "unsized": len(found) - len(sized),
    }


def captured(bench, spec: str, run: dict, notes: Notes, case: str) -> None:
    """What explain and fullgraph say of one call, and how often each broken line runs in it."""
    index = run["call"]
    stage = Stage(Actor(EAGER), spec, bench.settings["seed"])
    arguments, named = stage.arguments_of(index)
    model = partial(stage.model, **named) if named else stage.model
    for what, ask in (
        ("lines", lambda: search.line_counts(model, arguments, run.get("lines", []))),
        ("explain", lambda: vars(capture.explain_summary(model, *arguments))),
        (
            "fullgraph",
            lambda: vars(capture.fullgraph_outcome(model, *arguments, **_capturing(stage.options))),
        ),
    ):
        told, error = failure.guarded(ask)
        notes.add(**{what: {"raises": failure.tell(error)} if error else told})


def _capturing(options: dict) -> dict:
    return {key: value for key, value in options.items() if key == "dynamic"}


def narrowed(bench, spec: str, run: dict, notes: Notes, case: str) -> None:
    """Which is the smallest submodule that alone still breaks the graph? Each step of the search is noted."""
    stage = Stage(Actor(EAGER), spec, bench.settings["seed"])
    arguments, named = stage.arguments_of(run["call"])
    for step in search.smallest_submodule(stage.model, arguments, named, _capturing(stage.options)):
        notes.add(step=step)


RUNS = {
    "eager": eager,
    "compiled": compiled,
    "precision": precision,
    "captured": captured,
    "narrowed": narrowed,
}
