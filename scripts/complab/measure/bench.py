"""What does an experiment's measuring function work with, and what does it leave behind?

A `Bench` is handed to the functions of an experiment's script inside the measured process. It knows
the cell, records rows, and owns the measurements every experiment shares.
"""

import contextlib
import hashlib
import io
import json
import math
from collections.abc import Callable
from functools import partial

from complab import torchlog, units
from complab.measure import bisect, calls, capture, compare, dynamo, failure, memory, timing


class Bench:
    """One cell's measurement in progress.

    ``policy``, ``cache``, ``device`` and ``settings`` (the cell's slice of the configuration) say what
    to do; `record` takes the facts, in any order. ``outputs`` is a running SHA-256 of every compiled
    output that was compared.
    """

    def __init__(self, request: dict, log: io.StringIO):
        self.policy: str = request["cell"]["policy"]
        self.cache: str = request["cell"]["cache"]
        self.settings: dict = request["config"]
        self.device: str = self.settings["device"]
        self.clock = timing.Clock(self.device)
        self.rows: list[dict] = []
        self.outputs = hashlib.sha256()
        self._log = log
        self._wrong: dict[str, str] = {}
        self._raised: set[str] = set()

    def record(
        self,
        metric: str,
        value: float,
        unit: str,
        *,
        case: str = "",
        call: int | None = None,
        detail: str = "",
    ) -> None:
        """Add one row. ``value`` must be finite, in SI units; text belongs in ``detail``."""
        if wrong := units.problem(metric, unit):
            raise ValueError(wrong)
        if not math.isfinite(value):
            raise ValueError(
                f"{metric} of case '{case}' is {value}: a value that is no number is not recorded"
            )
        row = {
            "case": case,
            "call": call,
            "metric": metric,
            "value": float(value),
            "unit": unit,
            "detail": detail,
        }
        self.rows.append(row)

    def say(self, text: str) -> None:
        """Print one line for the person watching."""
        print(text, flush=True)

    def begin_log(self, case: str, call: int | None = None) -> int:
        """Write into the log that a case's calls, or one of them, begin; returns the position behind it."""
        self._log.write(torchlog.begin(case, call))
        return self._log.tell()

    def end_log(self, position: int, case: str, call: int | None = None) -> torchlog.Log:
        """Write into the log that they have ended; returns what torch logged since ``position``, parsed."""
        told = torchlog.parse(self._log.getvalue()[position:])
        self._log.write(torchlog.end(case, call))
        return told

    def agree(self, case: str, expected, actual, call: int | None = None) -> bool:
        """Record how far a compiled output is from eager; a wrong one keeps its case from being timed."""
        found = compare.agreement(expected, actual, self.settings["tolerance"])
        self.outputs.update(compare.content(actual))
        self.record("within_tolerance", found.within, "1", case=case, call=call)
        self.record("bitwise_equal", found.bitwise, "1", case=case, call=call)
        if math.isfinite(found.max_abs_diff):
            self.record("max_abs_diff", found.max_abs_diff, "1", case=case, call=call)
        if not found.within:
            self._wrong[case] = f"output differs from eager by {found.max_abs_diff} at call {call}"
        return found.within

    @contextlib.contextmanager
    def capturing(self, case: str):
        """Record what Dynamo's state and torch's log say was captured in the enclosed calls of a case.

        Recorded too if a call raises; the exception goes on.
        """
        position, graphs, counts = self.begin_log(case), dynamo.graphs_captured(), dynamo.frame_counts()
        mark, raised = dynamo.newest_compilation(), True
        try:
            yield
            raised = case in self._raised
        finally:
            tried, compiled = (
                after - before for after, before in zip(dynamo.frame_counts(), counts, strict=True)
            )
            self._record_frames(case, tried, compiled, dynamo.frames_since(mark), raised)
            self.record("graphs_captured", dynamo.graphs_captured() - graphs, "graphs", case=case)
            for told in self.end_log(position, case).of_case():
                self.record(told.metric, told.value, told.unit, case=case, detail=told.detail)

    def _record_frames(
        self, case: str, tried: int, compiled: int, frames: list[dynamo.Frame] | None, raised: bool
    ) -> None:
        """Counts of frames, each compiled one by name, and why the others were given up.

        The counters say what was tried and compiled, but 2.6 counts among the compiled ones a frame that it
        gave up for a break in a loop. What was kept decides, where the release tells it.
        """
        self.record("frames_tried", tried, "frames", case=case)
        if frames is None:
            self.record("frames_compiled", compiled, "frames", case=case)
            return
        kept = [frame for frame in frames if frame.kept]
        given_up = [frame for frame in frames if not frame.kept]
        if raised and frames and not frames[-1].kept:
            # Not skipped: what it raised went to the caller.
            given_up.pop()
        self.record("frames_compiled", len(kept), "frames", case=case)
        skipped = "; ".join(f"{capture.name_of(frame)}: {capture.reason_of(frame)}" for frame in given_up)
        self.record("frames_skipped", len(given_up), "frames", case=case, detail=skipped)
        for index, frame in enumerate(kept):
            self.record("compiled_frame", 1, "frames", case=case, call=index, detail=capture.name_of(frame))

    def attempt(self, case: str, function: Callable, compiled: Callable, arguments: tuple) -> bool:
        """Call a case for the first time, in eager and compiled, either of which may raise.

        Records whether each runs and what was captured. If both run, how far they agree, and the seconds
        of the compiled call if they do; if both raise, whether for the same cause. True if they agree.
        """
        expected, eager_error = failure.guarded(partial(function, *arguments))
        self._record_run("eager_runs", case, eager_error)

        def first_call() -> tuple[float, object]:
            with self.capturing(case):
                return self.clock.time(compiled, *arguments)

        timed, compiled_error = failure.guarded(first_call)
        self._record_run("compiled_runs", case, compiled_error)
        if eager_error and compiled_error:
            self._record_causes(case, eager_error, compiled_error)
        if eager_error or compiled_error:
            return False
        seconds, actual = timed
        agrees = self.agree(case, expected, actual, call=0)
        if agrees:
            self.record("first_call", seconds, "s", case=case)
        self.say(f"{case}: first call {seconds:.2f} s")
        return agrees

    def _record_run(self, metric: str, case: str, error: Exception | None, call: int | None = None) -> None:
        detail = failure.tell(error) if error else ""
        self.record(metric, error is None, "1", case=case, call=call, detail=detail)
        if error:
            self.say(f"{case}: {metric.partition('_')[0]} raises {detail}")

    def _record_causes(self, case: str, eager: Exception, compiled: Exception) -> None:
        same = failure.same_cause(eager, compiled)
        root = failure.tell(failure.chain(compiled)[-1])
        told = failure.tell(eager) if same else f"eager: {failure.tell(eager)}; compiled: {root}"
        self.record("same_cause", same, "1", case=case, detail=told)

    def serve(self, case: str, model: Callable, compiled: Callable | None, requests: list) -> None:
        """Send each request through eager and compiled, once, and record time, fate and agreement.

        ``requests`` holds one tuple of arguments per call. Nothing but the call is inside the timed
        span; state is read before and after it. Without ``compiled`` only eager is served. One untimed
        eager call goes first: the start-up of torch's libraries is no part of either. A call that raises
        is recorded and ends the stream.
        """
        watcher = None if compiled is None else calls.CallWatcher(model)
        if self._time_call("eager_runs", case, 0, model, requests[0]) is None:
            return
        for index, arguments in enumerate(requests):
            length = arguments[0].shape[-1]
            self.record("sequence_length", length, "elements", case=case, call=index)
            timed = self._time_call("eager_runs", case, index, model, arguments)
            if timed is None:
                return
            eager_seconds, expected = timed
            self.record("eager_time", eager_seconds, "s", case=case, call=index)
            line = f"{index:4d}  length {length:4d}  eager {eager_seconds * 1e3:9.2f} ms"
            if watcher is not None:
                called = self._call_compiled(case, index, watcher, compiled, arguments)
                if called is None:
                    return
                seconds, actual, fate = called
                if self.agree(case, expected, actual, index):
                    self.record("compiled_time", seconds, "s", case=case, call=index)
                line += f"  compiled {seconds * 1e3:10.2f} ms  {calls.LABELS[fate]}"
            self.say(line)

    def _time_call(
        self, runs: str, case: str, index: int, function: Callable, arguments: tuple
    ) -> tuple[float, object] | None:
        """Seconds and result of one call of a stream; None if it raises, which ``runs`` tells.

        The case is not timed further: its next call would raise again, and that would end the process.
        """
        timed, error = failure.guarded(partial(self.clock.time, function, *arguments))
        if error:
            self._record_run(runs, case, error, index)
            self._wrong[case] = f"call {index} raises"
            if runs == "compiled_runs":
                self._raised.add(case)
        return timed

    def loop(self, case: str, model: Callable, compiled: Callable, requests: list) -> None:
        """Send each request through compiled only and record its fate, and the seconds of all together.

        Nothing is compared with eager, so these calls are no evidence of agreement. One untimed eager call
        goes first, and a call that raises is recorded and ends the stream, as in `serve`.
        """
        watcher, total = calls.CallWatcher(model), 0.0
        if self._time_call("eager_runs", case, 0, model, requests[0]) is None:
            return
        for index, arguments in enumerate(requests):
            length = arguments[0].shape[-1]
            self.record("sequence_length", length, "elements", case=case, call=index)
            called = self._call_compiled(case, index, watcher, compiled, arguments)
            if called is None:
                return
            seconds, _, fate = called
            total += seconds
            self.say(f"{index:4d}  length {length:4d}  {seconds * 1e3:10.2f} ms  {calls.LABELS[fate]}")
        self.record("compiled_runs", 1, "1", case=case)
        self.record("loop_time", total, "s", case=case)

    def _call_compiled(
        self, case: str, index: int, watcher: calls.CallWatcher, compiled: Callable, arguments: tuple
    ) -> tuple[float, object, str] | None:
        """Seconds, result and fate of a stream's compiled call; None if it raises, which leaves no fate."""
        position, before = self.begin_log(case, index), watcher.before()
        timed = self._time_call("compiled_runs", case, index, compiled, arguments)
        fate = None if timed is None else watcher.after(before, *arguments)
        self._record_call(case, index, fate, self.end_log(position, case, index), watcher.variants())
        return None if timed is None else (*timed, fate)

    def _record_call(
        self, case: str, index: int, fate: str | None, told: torchlog.Log, variants: int
    ) -> None:
        if fate is not None:
            self.record(fate, 1, "calls", case=case, call=index, detail=calls.LABELS[fate])
        self.record("variants", variants, "variants", case=case, call=index)
        for item in told.of_call():
            self.record(item.metric, item.value, item.unit, case=case, call=index, detail=item.detail)

    def steady(self, cases: dict[str, tuple[Callable, Callable | None]], calls_per_pass: int = 1) -> None:
        """Record seconds per call of each case: eager, compiled and eager once more, interleaved by round.

        ``cases`` maps a case to its eager and its compiled pass, None where nothing is compiled. All are
        timed in one window, so cases can be compared within a round too. The second eager pass is the
        A/A control: nothing differs between the two, so their ratio shows what this process cannot
        resolve. A case with a wrong output is not timed, nor is any in a cell whose cache state is not in
        ``steady_caches``.
        """
        if self.cache not in self.settings["steady_caches"]:
            self.say(f"no steady state is timed in a {self.cache} process")
            return
        passes = {}
        for case, (eager, compiled) in cases.items():
            if case in self._wrong:
                self.say(f"{case}: not timed, {self._wrong[case]}")
                continue
            self._measure_memory(case, compiled or eager)
            passes[case, "steady_eager"] = eager
            if compiled is not None:
                passes[case, "steady_compiled"] = compiled
            passes[case, "steady_control"] = eager
        if not passes:
            return
        samples = timing.interleaved(self.clock, passes, self.settings["steady_rounds"])
        for (case, metric), rounds in samples.items():
            for index, seconds in enumerate(rounds):
                self.record(metric, seconds / calls_per_pass, "s", case=case, call=index)

    def _measure_memory(self, case: str, one_pass: Callable) -> None:
        peak = memory.PeakMemory(self.device)
        with peak:
            one_pass()
        if peak.bytes is None:
            self.say(f"{case}: peak memory {peak.why}")
        else:
            self.record(peak.metric, peak.bytes, "bytes", case=case, detail=peak.instrument)

    def steady_stream(self, case: str, model: Callable, compiled: Callable | None, requests: list) -> None:
        """`steady` over whole passes of a stream, in the state that serving it has left."""

        def one_pass(function: Callable) -> None:
            for arguments in requests:
                function(*arguments)

        candidate = None if compiled is None else partial(one_pass, compiled)
        self.steady({case: (partial(one_pass, model), candidate)}, len(requests))

    def explain(self, case: str, function: Callable, arguments: tuple) -> None:
        """Record what explain says of one call."""
        told = capture.explain_summary(function, *arguments)
        breaks = "; ".join(
            f"{place} | {reason}" for place, reason in zip(told.places, told.reasons, strict=True)
        )
        self.record("explain_graphs", told.graphs, "graphs", case=case)
        self.record("explain_breaks", told.breaks, "breaks", case=case, detail=breaks)

    def fullgraph(self, case: str, function: Callable, arguments: tuple, options: dict) -> None:
        """Record whether one call is accepted under ``fullgraph=True``."""
        told = capture.fullgraph_outcome(function, *arguments, **options)
        detail = "" if told.accepts else f"{told.error}: {told.message}"
        self.record("fullgraph_accepts", told.accepts, "1", case=case, detail=detail)

    def bisect(self, case: str, make_program: Callable, make_arguments: Callable, **options) -> None:
        """Record which compiler layer is the first that breaks a program, and how each fared.

        See `bisect.bisect`, which takes the same factories and options.
        """
        told = bisect.bisect(
            make_program, make_arguments, self.settings["tolerance"], self.settings["seed"], **options
        )
        self.record("eager_runs", not told.eager.error, "1", case=case, detail=told.eager.error)
        if math.isfinite(told.eager.difference):
            self.record("eager_repeat_diff", told.eager.difference, "1", case=case)
        for backend, run in told.backends.items():
            self.record(f"backend_{backend}_agrees", run.agrees, "1", case=case, detail=run.told)
        found = told.faulty_layer
        self.record("faulty_layer", found != bisect.NONE, "1", case=case, detail=found)
        self.say(f"{case}: faulty layer {found}")

    def rows_text(self) -> str:
        """The rows as JSON lines."""
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows)
