"""What a call of a case leaves behind: whether it ran, whose fault a failure is, what was compiled."""

import io

import pytest
import torch

from complab import torchlog
from complab.measure import capture, dynamo, failure
from complab.measure.bench import Bench

SHAPE = "shape '[8, 64, 256]' is invalid for input of size 98304"


@pytest.fixture(autouse=True)
def clean_dynamo():
    """No test sees what another has compiled."""
    capture.hard_reset()
    yield
    capture.hard_reset()


@pytest.fixture
def bench():
    """A bench as a measured process has it, with the log that torch writes meanwhile."""
    cell = {"policy": "default", "cache": "cold"}
    settings = {"device": "cpu", "tolerance": {"rtol": 1e-4, "atol": 1e-4}}
    with capture.capture_logs(graph_breaks=True, recompiles=True) as log:
        yield Bench({"cell": cell, "config": settings}, log)


def compiled(function, **options):
    return torch.compile(function, backend="eager", **options)


def facts(bench: Bench) -> dict[str, float]:
    """Values by metric; those recorded once."""
    return {row["metric"]: row["value"] for row in bench.rows}


def details(bench: Bench, metric: str) -> list[str]:
    return [row["detail"] for row in bench.rows if row["metric"] == metric]


class Healthy(torch.nn.Module):
    def forward(self, x):
        return x * 2


class AssumesLength(torch.nn.Module):
    def forward(self, x):
        return x.reshape(x.shape[0], 64, 256)


class BreaksInLoop(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Healthy()

    def forward(self, x):
        for _ in range(2):
            if x.sum().item() > 1e6:
                x = x - 1
            x = self.inner(x)
        return x


class BreaksOnce(torch.nn.Module):
    def forward(self, x):
        if x.sum().item() > 1e6:
            x = x - 1
        return x * 2


# Whether it ran.


def test_a_healthy_case_runs_agrees_and_has_a_first_call(bench):
    assert bench.attempt("case", Healthy(), compiled(Healthy()), (torch.ones(3),))
    told = facts(bench)
    assert (told["eager_runs"], told["compiled_runs"], told["within_tolerance"]) == (1, 1, 1)
    assert told["first_call"] > 0
    assert told["graphs_captured"] == 1
    assert "same_cause" not in told


@pytest.mark.fault("T18", "an eager program that raises")
def test_what_eager_raises_too_is_told_with_its_cause_and_has_no_time(bench):
    model = AssumesLength()
    assert not bench.attempt("case", model, compiled(model), (torch.ones(8, 48, 256),))
    told = facts(bench)
    assert (told["eager_runs"], told["compiled_runs"], told["same_cause"]) == (0, 0, 1)
    assert details(bench, "eager_runs") == details(bench, "same_cause") == [f"RuntimeError: {SHAPE}"]
    assert details(bench, "compiled_runs")[0].startswith("TorchRuntimeError: ")
    assert not told.keys() & {"first_call", "within_tolerance"}


@pytest.mark.fault("T8", "a compiled call that raises where eager runs")
def test_a_call_that_only_the_compiler_fails_has_no_common_cause(bench):
    def backend(graph, inputs):
        raise ValueError("this backend compiles nothing")

    model = Healthy()
    assert not bench.attempt("case", model, torch.compile(model, backend=backend), (torch.ones(3),))
    told = facts(bench)
    assert (told["eager_runs"], told["compiled_runs"]) == (1, 0)
    assert "same_cause" not in told


def test_two_failures_that_differ_are_both_told(bench):
    def other(x):
        raise ValueError("something else")

    model = AssumesLength()
    bench.attempt("case", model, other, (torch.ones(8, 48, 256),))
    assert facts(bench)["same_cause"] == 0
    (told,) = details(bench, "same_cause")
    assert told == f"eager: RuntimeError: {SHAPE}; compiled: ValueError: something else"


@pytest.mark.fault("T18", "a compiled program that computes something else")
def test_a_compiled_call_that_computes_something_else_gets_no_time(bench):
    assert not bench.attempt("case", Healthy(), lambda x: x * 3, (torch.ones(3),))
    told = facts(bench)
    assert (told["compiled_runs"], told["within_tolerance"]) == (1, 0)
    assert "first_call" not in told


def wrapped(error: Exception, message: str = "the compiler says") -> Exception:
    """The error as a compiler wraps it."""
    try:
        raise RuntimeError(message) from error
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize(
    ("eager", "compiled", "same"),
    [
        (ValueError("n"), ValueError("n"), True),
        (ValueError("n"), wrapped(wrapped(ValueError("n"))), True),
        (ValueError("a\n b"), ValueError("a b"), True),
        (ValueError("n"), ValueError("m"), False),
        (ValueError("n"), TypeError("n"), False),
        (ValueError("n"), wrapped(ValueError("m")), False),
        # Its message quoted in another error is not the error.
        (ValueError("n"), RuntimeError("got ValueError('n')"), False),
    ],
)
def test_the_cause_is_the_same_if_eagers_error_is_found_below_the_compiled_one(eager, compiled, same):
    assert failure.same_cause(eager, compiled) == same


def test_a_chain_of_errors_that_bites_its_tail_ends():
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert failure.chain(one) == [one, other]


def test_an_error_is_told_by_its_class_and_first_line():
    assert failure.tell(ValueError("\n first\nsecond")) == "ValueError: first"
    assert failure.tell(KeyError()) == "KeyError"


# Which frames were compiled.


def captured(bench: Bench, model: torch.nn.Module, calls: int = 1) -> dict[str, float]:
    run = compiled(model)
    with bench.capturing("case"):
        for _ in range(calls):
            run(torch.ones(3))
    return facts(bench)


def test_a_captured_model_is_one_frame_by_its_name(bench):
    told = captured(bench, Healthy(), calls=2)
    assert (told["frames_compiled"], told["frames_skipped"]) == (1, 0)
    assert details(bench, "compiled_frame") == ["forward of Healthy [0/0]"]


def test_a_break_in_a_loop_gives_up_the_frame_and_its_callee_is_compiled_instead(bench):
    told = captured(bench, BreaksInLoop())
    assert (told["frames_compiled"], told["frames_skipped"], told["log_breaks"]) == (1, 1, 1)
    assert details(bench, "compiled_frame") == ["forward of Healthy [1/0]"]
    (skipped,) = details(bench, "frames_skipped")
    reasons = ("graph break in loop", f"reason not reported by torch {torch.__version__}")
    assert skipped in [f"forward of BreaksInLoop [0/0]: {reason}" for reason in reasons]


def test_a_break_outside_a_loop_skips_no_frame_and_the_rest_is_a_frame_of_its_own(bench):
    told = captured(bench, BreaksOnce())
    assert (told["frames_compiled"], told["frames_skipped"], told["log_breaks"]) == (2, 0, 1)
    first, second = details(bench, "compiled_frame")
    line = BreaksOnce.forward.__code__.co_firstlineno + 1
    assert first == "forward of BreaksOnce [0/0]"
    assert second == f"forward of BreaksOnce resumed at line {line} [1/0]"


def test_a_variant_refused_at_the_limit_is_a_limit_hit_and_no_skipped_frame(bench):
    model = Healthy()
    run = torch.compile(model, backend="eager", dynamic=False)
    setting = dynamo.set_recompile_limit(8)
    with torch._dynamo.config.patch({setting: 2}), bench.capturing("case"):
        for length in (3, 4, 5, 6):
            run(torch.ones(length))
    told = facts(bench)
    assert (told["frames_tried"], told["frames_compiled"], told["frames_skipped"]) == (3, 2, 0)
    assert told["limit_hits"] == 1


def test_a_frame_whose_compilation_raises_is_not_called_skipped(bench):
    model = AssumesLength()
    bench.attempt("case", model, compiled(model), (torch.ones(8, 48, 256),))
    told = facts(bench)
    assert (told["frames_compiled"], told["frames_skipped"]) == (0, 0)


def test_an_exception_goes_on_after_its_capture_was_recorded(bench):
    with pytest.raises(KeyError), bench.capturing("case"):
        raise KeyError
    assert facts(bench)["frames_tried"] == 0


def test_without_compilation_metrics_skipped_frames_are_not_reported(bench, monkeypatch):
    monkeypatch.delattr(torch._dynamo.utils, "get_compilation_metrics")
    told = captured(bench, Healthy())
    assert told["frames_compiled"] == 1
    assert not told.keys() & {"frames_skipped", "compiled_frame"}


def test_frames_are_not_told_if_torch_may_have_forgotten_some(monkeypatch):
    compiled(lambda x: x * 2)(torch.ones(3))
    mark = dynamo.newest_compilation()
    assert dynamo.frames_since(mark) == []
    kept = torch._dynamo.utils.DEFAULT_COMPILATION_METRICS_LIMIT
    for told in ([], [object()] * kept):
        monkeypatch.setattr(torch._dynamo.utils, "get_compilation_metrics", lambda told=told: told)
        assert dynamo.frames_since(mark) is None
    assert dynamo.frames_since(None) is None


def test_a_frame_without_readable_source_is_told_by_its_name_alone():
    frame = dynamo.Frame("0/0", "forward", "<string>", 1, True, "")
    assert capture.name_of(frame) == "forward [0/0]"


def test_a_function_that_is_not_to_be_captured_leaves_no_frame(bench):
    def hook(x):
        return x + 1

    dynamo.never_capture(hook)
    run = compiled(hook)
    with bench.capturing("case"):
        run(torch.ones(3))
    assert facts(bench)["frames_tried"] == 0


def test_logs_are_those_of_the_enclosed_calls():
    bench = Bench(
        {"cell": {"policy": "default", "cache": "cold"}, "config": {"device": "cpu"}}, io.StringIO()
    )
    assert captured(bench, Healthy())["log_breaks"] == 0


class BreaksBetween(torch.nn.Module):
    def forward(self, x):
        x = x * 2
        torch._dynamo.graph_break()
        return x + 1


def recorded_of_the_log(bench: Bench) -> list[tuple]:
    """The rows that the log is the source of, as (case, call, metric, value, detail)."""
    names = {"log_breaks", "log_break_messages", "log_recompiles", "limit_hits", "recompiles", "limit_hit"}
    told = [row for row in bench.rows if row["metric"] in names]
    return [(row["case"], row["call"], row["metric"], row["value"], row["detail"]) for row in told]


def test_the_log_read_again_tells_what_was_recorded_of_it(bench):
    requests = [(torch.ones(1, length),) for length in (4, 5, 4, 6)]
    for case, module in (("healthy", Healthy()), ("breaks", BreaksBetween())):
        with bench.capturing(case):
            bench.serve(case, module, compiled(module, dynamic=False), requests)
    text = f"# process timed\n{bench._log.getvalue()}# process probes\nnothing\n"
    again = []
    for section in torchlog.sections(text):
        assert section.process == "timed"
        counted = section.log.of_case() if section.call is None else section.log.of_call()
        again += [(section.case, section.call, each.metric, each.value, each.detail) for each in counted]
    assert sorted(again, key=str) == sorted(recorded_of_the_log(bench), key=str)
    assert ("breaks", None, "log_breaks", 1) in [each[:4] for each in again]
    assert ("healthy", 1, "recompiles", 1) in [each[:4] for each in again]


def test_a_section_of_the_log_knows_the_line_of_each_message(bench):
    module = BreaksBetween()
    with bench.capturing("breaks"):
        compiled(module)(torch.ones(3))
    text = "# process timed\n" + bench._log.getvalue()
    (section,) = torchlog.sections(text)
    (found,) = section.log.breaks
    assert "Graph break in user code" in text.split("\n")[found.line - 1]
    assert text.split("\n")[section.line - 1] == "# case breaks"


def test_a_call_that_raises_leaves_its_section_open_to_the_end_of_the_process():
    text = "# process timed\n# case one\n# case one, call 0\nnoise\n# process probes\nmore\n"
    assert [(each.case, each.call, each.process) for each in torchlog.sections(text)] == [
        ("one", None, "timed"),
        ("one", 0, "timed"),
    ]
