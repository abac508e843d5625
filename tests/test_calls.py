"""What torch did with a call is read from its state and its log, on a capture that compiles nothing."""

import gc
import itertools
import logging
import sys

import pytest
import torch

from complab import torchlog
from complab.measure import calls, capture, compare, dynamo, memory, timing
from complab.measure.calls import EAGER, NEW_VARIANT, REFUSED, REUSE, SKIPPED, CallWatcher, State, decide

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture
def limit_of_three():
    """Dynamo with a limit of three variants and nothing compiled; the old limit afterwards."""
    name = "recompile_limit" if dynamo.capabilities()["recompile_limit"] else "cache_size_limit"
    before = getattr(torch._dynamo.config, name)
    capture.hard_reset()
    yield dynamo.set_recompile_limit(3)
    dynamo.set_recompile_limit(before)
    capture.hard_reset()


@pytest.fixture(autouse=True)
def clean_dynamo():
    """No test sees what another has compiled."""
    capture.hard_reset()
    yield
    capture.hard_reset()


def doubled(x):
    return x * 2


def with_break(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


class Doubler(torch.nn.Module):
    def forward(self, x, scale=2):
        return x * scale


# The fate of a call.


@pytest.mark.parametrize(
    ("before", "after", "accepted", "fate"),
    [
        (State(0, 0, 0), State(1, 1, 1), True, NEW_VARIANT),
        (State(0, 0, 0), State(3, 3, 1), True, NEW_VARIANT),
        (State(2, 2, 2), State(3, 3, 3), False, NEW_VARIANT),
        (State(3, 3, 3), State(4, 3, 3), False, REFUSED),
        (State(3, 3, 3), State(4, 3, 3), True, REFUSED),
        (State(5, 5, 2), State(6, 6, 2), True, NEW_VARIANT),
        (State(0, 0, 0), State(1, 0, 0), False, SKIPPED),
        (State(0, 0, 0), State(2, 1, 0), False, SKIPPED),
        (State(3, 3, 3), State(3, 3, 3), True, REUSE),
        (State(3, 3, 3), State(3, 3, 3), False, EAGER),
        (State(0, 0, 0), State(0, 0, 0), False, EAGER),
    ],
)
def test_the_fate_of_a_call_follows_from_the_states_around_it(before, after, accepted, fate):
    assert decide(before, after, accepted) == fate


def test_every_fate_has_words():
    assert set(calls.LABELS) == {NEW_VARIANT, REUSE, REFUSED, EAGER, SKIPPED}


def test_a_clock_is_no_part_of_a_fate():
    fates = {
        decide(State(tried, tried, variants), State(tried + more, tried, variants), accepted)
        for tried, variants, more, accepted in itertools.product(
            range(3), range(1, 3), range(2), (True, False)
        )
    }
    assert fates == {REFUSED, REUSE, EAGER}


def fates_of(subject, lengths: list[int], **options) -> list[str]:
    watcher, compiled = CallWatcher(subject), torch.compile(subject, backend="eager", **options)
    told = []
    for length in lengths:
        x = torch.ones(1, length)
        before = watcher.before()
        compiled(x)
        told.append(watcher.after(before, x))
    return told


@pytest.mark.parametrize("subject", [doubled, Doubler()], ids=["function", "module"])
def test_the_limit_serves_old_lengths_and_refuses_new_ones_once(limit_of_three, subject):
    told = fates_of(subject, [4, 5, 4, 6, 7, 8, 5, 7, 4], dynamic=False)
    assert told == [NEW_VARIANT, NEW_VARIANT, REUSE, NEW_VARIANT, REFUSED, EAGER, REUSE, EAGER, REUSE]


def test_by_default_the_second_length_is_the_last_variant(limit_of_three):
    assert fates_of(doubled, [4, 5, 6, 7, 4]) == [NEW_VARIANT, NEW_VARIANT, REUSE, REUSE, REUSE]


def test_watching_a_call_changes_no_state(limit_of_three):
    fates_of(doubled, [4, 5], dynamic=False)
    watcher = CallWatcher(doubled)
    before = watcher.before()
    for length in (4, 9, 4):
        watcher.after(before, torch.ones(1, length))
    assert watcher.before() == before
    assert watcher.variants() == 2


def test_a_function_that_cannot_be_captured_is_a_skipped_frame(limit_of_three):
    def in_a_loop(x):
        for _ in range(2):
            torch._dynamo.graph_break()
            x = x + 1
        return x

    assert fates_of(in_a_loop, [4])[0] == SKIPPED


# Logs.


def test_a_break_is_collected_with_its_place():
    with capture.capture_logs(graph_breaks=True) as log:
        torch.compile(with_break, backend="eager")(torch.ones(3))
    (found,) = torchlog.parse(log.getvalue()).break_places
    assert (found.file, found.lineno) == (__file__, with_break.__code__.co_firstlineno + 1)


def test_a_call_has_the_lines_after_its_position(limit_of_three):
    compiled = torch.compile(doubled, backend="eager", dynamic=False)
    with capture.capture_logs(recompiles=True) as log:
        compiled(torch.ones(4))
        position = log.tell()
        compiled(torch.ones(5))
    assert torchlog.parse(log.getvalue()[:position]).recompiles == ()
    assert len(torchlog.parse(log.getvalue()[position:]).recompiles) == 1


def test_the_warning_about_the_limit_is_collected_without_being_asked_for(limit_of_three):
    compiled = torch.compile(doubled, backend="eager", dynamic=False)
    with capture.capture_logs() as log:
        for length in (4, 5, 6, 7):
            compiled(torch.ones(length))
    (found,) = torchlog.parse(log.getvalue()).limits
    assert (found.setting, found.limit) == (limit_of_three, 3)


def handlers() -> list[logging.Handler]:
    return [handler for name in ("torch", "") for handler in logging.getLogger(name).handlers]


@pytest.mark.parametrize("fails", [False, True])
def test_after_capturing_nothing_is_written_to_the_buffer_any_more(fails):
    try:
        with capture.capture_logs(graph_breaks=True) as log:
            if fails:
                raise KeyError
    except KeyError:
        pass
    size = log.tell()
    torch.compile(with_break, backend="eager")(torch.ones(3))
    logging.getLogger("torch._dynamo").warning("a warning after the capture")
    assert log.tell() == size
    assert all(getattr(handler, "stream", None) is not log for handler in handlers())
    assert all(handler.stream is sys.stderr for handler in dynamo.log_streams())


def test_capturing_leaves_as_many_handlers_as_before():
    with capture.capture_logs(graph_breaks=True):
        pass
    before = len(handlers())
    for _ in range(3):
        with capture.capture_logs(graph_breaks=True, recompiles=True):
            pass
    assert len(handlers()) == before


# Explain and fullgraph.


def test_explain_counts_two_graphs_and_one_break_with_its_source_line():
    told = capture.explain_summary(with_break, torch.ones(3))
    assert (told.graphs, told.breaks) == (2, 1)
    line = with_break.__code__.co_firstlineno + 1
    assert told.places[0] == f"{__file__}:{line}: if x.sum() > 0:"
    assert told.reasons[0]
    assert "\n" not in told.reasons[0]


def test_explain_finds_nothing_wrong_with_one_graph():
    told = capture.explain_summary(doubled, torch.ones(3))
    assert (told.graphs, told.breaks, told.ops, told.reasons, told.places) == (1, 0, 1, (), ())


def test_explain_of_a_call_without_any_operation_counts_no_graph_and_no_break():
    told = capture.explain_summary(lambda x: 3, torch.ones(3))
    assert (told.graphs, told.breaks) == (0, 0)


def test_fullgraph_rejects_a_break_in_one_line():
    told = capture.fullgraph_outcome(with_break, torch.ones(3))
    assert not told.accepts
    assert told.error
    assert told.message
    assert "\n" not in told.message


@pytest.mark.parametrize("options", [{}, {"dynamic": False}, {"dynamic": True}])
def test_fullgraph_accepts_one_graph_under_the_policys_options(options):
    assert capture.fullgraph_outcome(doubled, torch.ones(3), **options) == capture.FullgraphOutcome(
        True, "", ""
    )


# Dynamo's state.


def test_a_hard_reset_forgets_variants_counters_and_metrics():
    torch.compile(doubled, backend="eager")(torch.ones(3))
    assert dynamo.frame_counts() == (1, 1)
    assert dynamo.graphs_captured() == 1
    assert len(dynamo.cache_entries(doubled.__code__)) == 1
    capture.hard_reset()
    assert dynamo.frame_counts() == (0, 0)
    assert dynamo.graphs_captured() == 0
    assert dynamo.cache_entries(doubled.__code__) == []
    assert dynamo.compilation_metrics() == []


def test_compilation_metrics_are_plain_values():
    torch.compile(doubled, backend="eager")(torch.ones(3))
    (told,) = dynamo.compilation_metrics()
    assert told["co_name"] == "doubled"
    assert told["compile_id"] == "0/0"
    assert told["entire_frame_compile_time_s"] > 0


def test_counters_are_whole_numbers_with_one_line_names():
    torch.compile(with_break, backend="eager")(torch.ones(3))
    told = dynamo.counters()
    assert told["frames"]["ok"] >= 1
    for values in told.values():
        assert all("\n" not in name and type(value) is int for name, value in values.items())


def test_capabilities_have_stable_names_and_plain_answers():
    told = dynamo.capabilities()
    assert set(told) == {
        "recompile_limit",
        "counters",
        "cache_entries",
        "compilation_metrics",
        "compile_spans",
        "explain",
        "mark_dynamic",
        "mark_unbacked",
        "set_stance",
        "stance_eager_then_compile",
        "stance_aot_eager_then_compile",
        "fx_graph_cache",
        "aot_autograd_cache",
        "precompiled_headers",
        "log_handlers",
    }
    assert all(type(answer) is bool for answer in told.values())


def test_the_resolved_settings_are_json_of_three_modules(limit_of_three):
    told = dynamo.resolved_config()
    assert set(told) == {"dynamo", "inductor", "functorch"}
    assert told["dynamo"][limit_of_three] == 3
    assert " at 0x" not in str(told)


# Time.


@pytest.fixture
def synchronized(monkeypatch):
    """The order in which the device is drained, the clock is read and the call is made."""
    order = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("drain"))
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: order.append("clock") or len(order))
    return order


def test_on_cuda_the_device_is_drained_before_the_clock_starts_and_before_it_stops(synchronized):
    seconds, result = timing.Clock("cuda").time(lambda x: synchronized.append("call") or x, 7)
    assert synchronized == ["drain", "clock", "call", "drain", "clock"]
    assert (seconds, result) == (3e-9, 7)


def test_on_a_cpu_nothing_is_drained(synchronized):
    timing.Clock("cpu").time(lambda: synchronized.append("call"))
    assert synchronized == ["clock", "call", "clock"]


class Count:
    """A clock whose seconds are the number of the call."""

    def __init__(self):
        self.called = 0

    def time(self, function):
        self.called += 1
        return float(self.called), function()


def test_rounds_alternate_their_order_and_the_warm_up_is_dropped():
    order = []
    passes = {name: lambda name=name: order.append(name) for name in "abc"}
    samples = timing.interleaved(Count(), passes, rounds=4)
    rounds = ["".join(order[start : start + 3]) for start in range(0, len(order), 3)]
    assert len(rounds) == timing.WARM_UP_ROUNDS + 4
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert all(one != other for one, other in itertools.pairwise(rounds))
    assert {name: len(values) for name, values in samples.items()} == {"a": 4, "b": 4, "c": 4}
    kept = sorted(itertools.chain.from_iterable(samples.values()))
    assert kept == [float(number) for number in range(3 * timing.WARM_UP_ROUNDS + 1, len(order) + 1)]


def test_samples_of_one_index_are_of_one_round():
    samples = timing.interleaved(Count(), {"a": lambda: None, "b": lambda: None}, rounds=5)
    assert all(abs(one - other) == 1 for one, other in zip(samples["a"], samples["b"], strict=True))


@pytest.mark.parametrize("names", ["ab", "abc", "abcdef"])
def test_each_pass_stands_in_each_place_equally_often(names):
    order = []
    passes = {name: lambda name=name: order.append(name) for name in names}
    timing.interleaved(Count(), passes, rounds=2 * len(names))
    kept = order[timing.WARM_UP_ROUNDS * len(names) :]
    for place in range(len(names)):
        there = kept[place :: len(names)]
        assert {name: there.count(name) for name in names} == dict.fromkeys(names, 2)


@pytest.mark.parametrize("was_on", [True, False])
def test_the_garbage_collector_rests_meanwhile_and_is_left_as_it_was(was_on):
    seen = []
    (gc.enable if was_on else gc.disable)()
    try:
        timing.interleaved(Count(), {"a": lambda: seen.append(gc.isenabled())}, rounds=2)
        assert gc.isenabled() == was_on
        with pytest.raises(KeyError):
            timing.interleaved(Count(), {"a": lambda: {}["missing"]}, rounds=2)
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
    assert not any(seen)


# Memory.


def test_on_cuda_the_peak_is_the_allocators_since_the_window_began(monkeypatch):
    order = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("drain"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: order.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: order.append("read") or 12345)
    with memory.PeakMemory("cuda") as peak:
        order.append("work")
    assert order == ["drain", "reset", "work", "drain", "read"]
    assert (peak.bytes, peak.why, peak.instrument) == (12345, "", "CUDA caching allocator")


def test_on_a_cpu_the_peak_is_a_number_or_there_is_a_reason():
    size = 96 << 20
    with memory.PeakMemory("cpu") as peak:
        held = b"x" * size
        del held
    assert (peak.bytes is None) == bool(peak.why)
    assert peak.why.startswith("not measured: ") or peak.bytes >= 0.9 * size


def test_a_kernel_that_refuses_gives_the_reason_and_no_number(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(memory.Path, "write_text", refuse)
    with memory.PeakMemory("cpu") as peak:
        pass
    assert peak.bytes is None
    assert peak.why.startswith("not measured: ")
    assert "Permission denied" in peak.why


# Agreement with eager.

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("expected", "actual", "within", "bitwise"),
    [
        ([1.0, 2.0], [1.0, 2.0], True, True),
        ([1.0, 2.0], [1.0, 2.00001], True, False),
        ([1.0, 2.0], [1.0, 2.1], False, False),
        ([1.0, 2.0], [1.0, NAN], False, False),
        ([1.0, NAN], [1.0, NAN], False, False),
        ([1.0, INF], [1.0, INF], True, True),
        ([1.0, INF], [1.0, -INF], False, False),
        ([1.0, 2.0], [1.0], False, False),
    ],
)
def test_an_output_agrees_within_the_tolerance_or_not(expected, actual, within, bitwise):
    found = compare.agreement(torch.tensor(expected), torch.tensor(actual), TOLERANCE)
    assert (found.within, found.bitwise) == (within, bitwise)


def test_outputs_of_different_types_do_not_agree():
    one = torch.ones(2)
    assert not compare.agreement(one, one.double(), TOLERANCE).within


def test_the_largest_difference_is_told():
    found = compare.agreement(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.25]), TOLERANCE)
    assert found.max_abs_diff == 0.5
