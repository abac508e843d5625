"""What torch logs is read the same on every release.

The logs under data/torchlogs were recorded on real releases by data/torchlogs/record.py, one for each of its
programs; `source lines` here are lines of that script.
"""

import ast
import dataclasses
import re
import sys
from pathlib import Path

import pytest

from complab import guards, torchlog
from complab.guards import Assumption, classify_guard
from complab.torchlog import GuardFailure, Log, parse

DATA = Path(__file__).parent / "data" / "torchlogs"
RELEASES = ("2.6.0", "2.13.0")
RECORDED = sorted(DATA.glob("*/*.log"))
PROGRAM = (DATA / "record.py").read_text(encoding="utf-8").splitlines()

# Program: the assumptions that its recompiles name, in order; the same on both releases.
SHAPE, VALUE, ATTRIBUTE, GLOBAL = "shape", "python-value", "module-attribute", "global-state"
ASSUMPTIONS = {
    "attribute_appears": [(ATTRIBUTE, "x.tag", None)],
    "break_in_loop": [("requires-grad", "x", None)],
    "break_repeated": [(SHAPE, "x", 0), (SHAPE, "x", 0)],
    "closure_cell": [(VALUE, "scale", None)],
    "closure_of_argument": [(GLOBAL, "function.__closure__[0].cell_contents", None)],
    "default_dynamic": [(SHAPE, "idx", 1)],
    "device_of_argument": [("device", "x", None)],
    "dtype_of_argument": [("dtype", "idx", None)],
    "global_item": [(GLOBAL, "G['TABLE']['scale']", None)],
    "global_state_autocast": [(GLOBAL, "autocast(cpu)_enabled", None)],
    "global_state_default_dtype": [(GLOBAL, "default_dtype", None)],
    "global_state_deterministic": [(GLOBAL, "deterministic_algorithms", None)],
    "global_state_device": [(GLOBAL, "torch_function_mode_stack", None)],
    "global_state_threads": [(GLOBAL, "num_threads", None)],
    "global_value": [(GLOBAL, "G['FLAG']", None)],
    "grad_mode": [("grad-mode", "grad_mode", None)],
    "identity_of_alias": [("object-identity", "a", None)],
    "identity_of_distinct_tensors": [("object-identity", "a", None)],
    "identity_of_function": [("object-identity", "function", None)],
    "inference_mode": [("grad-mode", "grad_mode", None)],
    "inference_tensor": [("grad-mode", "x", None)],
    "keys_of_dict": [("container-length", "d", None)],
    "layout_of_argument": [("other", "x", None)],
    "length_of_empty_list": [("container-length", "xs", None)],
    "length_of_list": [("container-length", "xs", None)],
    "limit_hit": [(SHAPE, "idx", 1)] * 6,
    "limit_hit_accumulated": [(SHAPE, "x", 0)] * 3,
    "limit_hit_on_value": [(ATTRIBUTE, "self.steps", None)] * 3,
    "module_attribute": [(ATTRIBUTE, "self.scale", None)],
    "module_attribute_item": [(ATTRIBUTE, "self.options['mode']", None)],
    "module_counter": [(ATTRIBUTE, "self.steps", None)] * 3,
    "module_function": [(ATTRIBUTE, "self.act", None)],
    "module_training": [(ATTRIBUTE, "self.training", None)],
    "none_after_tensor": [("input-type", "bias", None)],
    "object_attribute": [(ATTRIBUTE, "config.width", None)],
    "python_dtype": [(VALUE, "to", None)],
    "python_float": [(VALUE, "n", None)],
    "python_int": [(VALUE, "n", None)],
    "python_int_default_dynamic": [(VALUE, "n", None)],
    "python_int_range": [(VALUE, "n", None)],
    "python_list_item": [(VALUE, "sizes[1]", None)],
    "python_string": [(VALUE, "mode", None)],
    "recompile_of_resumed_frame": [(VALUE, "n", None)],
    "requires_grad_of_argument": [("requires-grad", "x", None)],
    "shape_divisibility": [(SHAPE, "x", 0)],
    "shape_duck_equality": [(SHAPE, "y", 1)],
    "shape_of_argument": [(SHAPE, "idx", 1)],
    "shape_of_list_item": [(SHAPE, "xs[1]", 0)],
    "shape_range": [(SHAPE, "x", 0)],
    "shape_rank": [(SHAPE, "x", None)],
    "shape_zero_one": [(SHAPE, "x", 0)] * 3,
    "stride_of_argument": [("stride", "x", 0)],
    "two_entries_rejected": [(SHAPE, "x", 0)] * 3,
    "type_of_argument": [(VALUE, "n", None)],
    "type_of_container": [("input-type", "xs", None)],
    "type_of_object": [("input-type", "config", None)],
    "type_of_tensor": [("input-type", "x", None)],
}

# The few programs whose guards the releases themselves word differently: 2.6.0, then 2.13.0.
WORDED_DIFFERENTLY = {
    "dynamic_marks": ([("other", "x", None)], [("other", "", None)]),
    "global_state_default_device": (
        [(GLOBAL, "utils_device.CURRENT_DEVICE", None)],
        [(GLOBAL, "torch_function_mode_stack", None)],
    ),
    "length_of_dict": ([("container-length", "d", None)], []),
    "none_before_tensor": ([("object-identity", "bias", None)], [("input-type", "bias", None)]),
    "python_bool": ([("object-identity", "flag", None)], [(VALUE, "flag", None)]),
    "shape_of_parameter": (
        [(SHAPE, "self._modules['linear']._parameters['weight']", 0)],
        [(SHAPE, "self._modules['linear']._parameters['bias']", 0)],
    ),
}

# Program: the source line that breaks; the labels on 2.6.0, then on 2.13.0.
ITEM = ("Unsupported: Tensor.item", "Unsupported Tensor.item() call with capture_scalar_outputs=False")
PRINT = (
    "Unsupported: builtin: print [<class 'torch._dynamo.variables.constant.ConstantVariable'>] False",
    "Failed to trace builtin operator",
)
EXPLICIT = (
    "Unsupported: 'skip function graph_break in file $TORCH/_dynamo/decorators.py'",
    "Call to `torch._dynamo.graph_break()`",
)
IN_HELPER = ("Unsupported: Dynamic control flow is not supported at the moment", "Data-dependent branching")
JUMP = ("Data-dependent jump", "Data-dependent branching")
SPARSE = ("Unsupported: torch.compile does not support sparse Tensors", "Attempted to wrap sparse Tensor")
DISABLED = (
    "Unsupported: call torch._dynamo.disable() wrapped function <function report>",
    "Skip calling `torch.compiler.disable()`d function",
)
BREAKS = {
    "break_before_blocks": ("torch._dynamo.graph_break()", EXPLICIT),
    "break_in_inlined_helper": ("return x.max().item()", ITEM),
    "break_in_loop": ("torch._dynamo.graph_break()", EXPLICIT),
    "break_in_loop_on_item": ("if x.sum().item() < 1:", ITEM),
    "break_in_try_block": ('print("half way")', PRINT),
    "break_in_with_block": ('print("half way")', PRINT),
    "break_on_branch_in_helper": ("if x.sum() > 0:", IN_HELPER),
    "break_on_disabled_helper": ("report(x)", DISABLED),
    "break_on_item_branch": ("if x.sum().item() > 0:", ITEM),
    "break_on_print": ("print(float(x.mean()))", ITEM),
    "break_on_print_call": ('print("half way")', PRINT),
    "break_on_tensor_branch": ("if x.sum() > 0:", JUMP),
    "break_repeated": ("if x.sum() > 0:", JUMP),
    "break_skips_frame": ("calls(lambda x: x + x, torch.ones(4, 4).to_sparse())", SPARSE),
    "recompile_of_resumed_frame": ("torch._dynamo.graph_break()", EXPLICIT),
}


def recorded(release, program):
    return (DATA / release / f"{program}.log").read_text(encoding="utf-8")


def name_of(path):
    return f"{path.parent.name}-{path.stem}"


def lists(log):
    return log.breaks, log.recompiles, log.limits


def facts(log):
    return [fact for each in lists(log) for fact in each]


def without_lines(log, *fields):
    """The facts with their line numbers (and any other named fields) blanked, for comparison."""
    blank = {"line": 0, **{field: "" for field in fields}}
    return [dataclasses.replace(fact, **blank) for fact in facts(log)]


def assumptions(log):
    found = [failure.assumption for recompile in log.recompiles for failure in recompile.failures]
    return [(each.kind, each.subject, each.axis) for each in found]


def without_prefixes(text):
    return re.sub(r"^[VW]\d{4} .*?:\d+\] \[\d+/\d+\](?: \[__\w+\])? ?", "", text, flags=re.MULTILINE)


# Recorded logs: breaks.


@pytest.mark.parametrize("program", BREAKS)
@pytest.mark.parametrize("release", RELEASES)
def test_a_break_is_read_with_its_source_line_and_the_releases_label(release, program):
    source, labels = BREAKS[program]
    first = parse(recorded(release, program)).breaks[0]
    assert (first.source, first.label) == (source, labels[RELEASES.index(release)])
    assert (first.compile_id, first.repeated) == ("0/0", False)


@pytest.mark.parametrize("release", RELEASES)
def test_a_helper_that_breaks_becomes_a_frame_and_breaks_again(release):
    for program in ("break_in_inlined_helper", "break_on_branch_in_helper"):
        log = parse(recorded(release, program))
        assert [(each.compile_id, each.repeated) for each in log.breaks] == [("0/0", False), ("1/0", True)]


@pytest.mark.parametrize("program", BREAKS)
def test_both_releases_break_at_the_same_lines_of_the_same_file(program):
    old, new = (parse(recorded(release, program)).break_places for release in RELEASES)
    places = [[(each.file, each.lineno) for each in told] for told in (old, new)]
    assert places[0] == places[1]
    assert len(old) == 1


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_every_place_in_a_log_is_that_line_of_the_recorded_program(path):
    log = parse(path.read_text(encoding="utf-8"))
    for each in log.breaks:
        assert each.file == "$PROJECT/tests/data/torchlogs/record.py"
        assert each.source in ("", PROGRAM[each.lineno - 1].strip())
    for each in (*log.recompiles, *log.limits):
        defined = "lambda" if each.function == "<lambda>" else f"def {each.function}("
        resumed = each.function.startswith("torch_dynamo_resume_in_")
        assert resumed or defined in PROGRAM[each.lineno - 1]


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_line_is_where_the_message_starts(path):
    text = path.read_text(encoding="utf-8")
    starts = {"Break": "Graph break", "Recompile": "Recompiling function", "LimitHit": "hit config."}
    for fact in facts(parse(text)):
        assert starts[type(fact).__name__] in text.split("\n")[fact.line - 1]


@pytest.mark.parametrize("release", RELEASES)
def test_a_place_reported_before_is_marked_repeated_and_has_no_source(release):
    first, second = parse(recorded(release, "break_repeated")).breaks
    assert (first.repeated, second.repeated) == (False, True)
    assert (first.file, first.lineno, first.label) == (second.file, second.lineno, second.label)
    assert (first.compile_id, second.compile_id, second.source) == ("0/0", "0/1", "")


def test_only_the_newer_release_says_that_a_loop_made_it_skip_the_frame():
    old, new = (parse(recorded(release, "break_in_loop")) for release in RELEASES)
    assert [each.frame_skipped for each in (*old.breaks, *new.breaks)] == [False, True]
    assert "graph break in loop" in new.breaks[0].reason


@pytest.mark.parametrize("program", ["break_skips_frame", "break_in_try_block"])
@pytest.mark.parametrize("release", RELEASES)
def test_a_frame_given_up_as_a_whole_is_one_break_on_both_releases(release, program):
    (only,) = parse(recorded(release, program)).breaks
    assert only.frame_skipped


def test_printing_a_tensors_value_breaks_twice_at_one_line_and_only_2_13_reports_both_in_full():
    old, new = (parse(recorded(release, "break_on_print")) for release in RELEASES)
    assert [each.repeated for each in old.breaks] == [False, True]
    assert [each.repeated for each in new.breaks] == [False, False]
    assert [each.label for each in (*old.breaks, *new.breaks)] == [ITEM[0], PRINT[0], ITEM[1], PRINT[1]]
    assert len(old.break_places) == len(new.break_places) == 1


@pytest.mark.parametrize("release", RELEASES)
def test_the_advice_about_tensor_item_is_not_a_break(release):
    text = recorded(release, "break_on_item_branch")
    assert text.count("Graph break") == 3
    assert len(parse(text).breaks) == 1


def test_the_reason_is_whole_and_free_of_the_users_stack():
    (only,) = parse(recorded("2.13.0", "break_on_item_branch")).breaks
    assert only.reason.startswith("Encountered graph break when attempting to trace CALL")
    assert "\n  Hint: Set `torch._dynamo.config.capture_scalar_outputs" in only.reason
    assert only.reason.endswith("/gb0124.html")
    assert "record.py" not in only.reason


def test_where_values_on_the_stack_came_from_is_not_part_of_the_reason():
    text = recorded("2.13.0", "break_in_inlined_helper")
    assert "Stack variable source attribution:" in text
    assert all("attribution" not in each.reason for each in parse(text).breaks)


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_labels_are_one_line_without_addresses(path):
    for each in parse(path.read_text(encoding="utf-8")).breaks:
        assert each.label
        assert not re.search(r"\n|0x[0-9a-f]{6}", each.label)


# Recorded logs: recompiles and limits.


@pytest.mark.parametrize("program", ASSUMPTIONS)
@pytest.mark.parametrize("release", RELEASES)
def test_the_same_program_breaks_the_same_assumption_on_both_releases(release, program):
    assert assumptions(parse(recorded(release, program))) == ASSUMPTIONS[program]


@pytest.mark.parametrize("program", WORDED_DIFFERENTLY)
def test_where_the_releases_word_a_guard_differently_each_is_still_read(program):
    read = tuple(assumptions(parse(recorded(release, program))) for release in RELEASES)
    assert read == WORDED_DIFFERENTLY[program]


def test_every_program_is_recorded_on_both_releases_and_judged_here():
    judged = {"clean", *ASSUMPTIONS, *WORDED_DIFFERENTLY, *BREAKS}
    for release in RELEASES:
        assert {path.stem for path in (DATA / release).iterdir()} == judged
    assert set(RECORDED) == {DATA / release / f"{program}.log" for release in RELEASES for program in judged}


@pytest.mark.parametrize("release", RELEASES)
def test_only_the_recorded_programs_recompile(release):
    recompiling = {*ASSUMPTIONS, *WORDED_DIFFERENTLY}
    for program in BREAKS.keys() - recompiling:
        assert parse(recorded(release, program)).recompiles == ()
    for program in recompiling - BREAKS.keys() - {"layout_of_argument", "type_of_tensor"}:
        assert parse(recorded(release, program)).breaks == ()


@pytest.mark.parametrize("release", RELEASES)
def test_a_clean_program_logs_nothing(release):
    assert parse(recorded(release, "clean")) == Log()


@pytest.mark.parametrize("release", RELEASES)
def test_the_guard_of_the_worked_example(release):
    (recompile,) = parse(recorded(release, "shape_of_argument")).recompiles
    (failure,) = recompile.failures
    assert (recompile.compile_id, recompile.function, failure.entry) == ("0/1", "forward", "0/0")
    assert "size mismatch at index 1. expected 60, actual 63" in failure.text
    assert failure.assumption == Assumption("shape", "idx", 1, "60", "63")
    assert failure.assumption.describe() == "idx: size mismatch at index 1 (expected 60, actual 63)"


@pytest.mark.parametrize("release", RELEASES)
def test_two_cached_entries_are_both_rejected_the_newest_first(release):
    first, second = parse(recorded(release, "two_entries_rejected")).recompiles
    assert [failure.entry for failure in first.failures] == ["0/0"]
    assert [failure.entry for failure in second.failures] == ["0/1", "0/0"]
    expected = [failure.assumption.expected for failure in second.failures]
    assert expected == ["48", "32"]


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_a_guard_does_not_include_the_stack_printed_after_it(path):
    for recompile in parse(path.read_text(encoding="utf-8")).recompiles:
        for failure in recompile.failures:
            assert "\n" not in failure.text
            assert "User stack trace" not in failure.text


@pytest.mark.parametrize(
    ("release", "program", "setting", "limit", "last"),
    [
        ("2.6.0", "limit_hit", "cache_size_limit", 3, "0/0"),
        ("2.13.0", "limit_hit", "recompile_limit", 3, "0/2"),
        ("2.6.0", "limit_hit_on_value", "cache_size_limit", 2, "0/0"),
        ("2.13.0", "limit_hit_on_value", "recompile_limit", 2, "0/1"),
        ("2.6.0", "limit_hit_accumulated", "accumulated_cache_size_limit", 2, "0/0"),
        ("2.13.0", "limit_hit_accumulated", "accumulated_recompile_limit", 2, "0/1"),
    ],
)
def test_the_limit_is_read_with_its_name_and_the_last_reason(release, program, setting, limit, last):
    log = parse(recorded(release, program))
    (hit,) = log.limits
    refused = log.recompiles[-1]
    assert (hit.setting, hit.limit, hit.function) == (setting, limit, refused.function)
    assert (hit.file, hit.lineno, hit.compile_id) == (refused.file, refused.lineno, refused.compile_id)
    assert GuardFailure(last, hit.last_reason.removeprefix(f"{last}: ")) in refused.failures
    assert classify_guard(hit.last_reason).kind == ASSUMPTIONS[program][0][0]


@pytest.mark.parametrize("release", RELEASES)
def test_after_the_limit_there_is_silence(release):
    log = parse(recorded(release, "limit_hit"))
    assert log.limits[0].line > max(recompile.line for recompile in log.recompiles)


@pytest.mark.parametrize("release", RELEASES)
def test_the_default_policy_recompiles_once(release):
    assert len(parse(recorded(release, "default_dynamic")).recompiles) == 1


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_recorded_logs_name_no_folder_of_the_machine_that_made_them(path):
    text = re.sub(r"https?://\S+", "", path.read_text(encoding="utf-8"))
    # An absolute path, or what is left of one behind a guard: '# rojects/lab/tests/...'.
    assert not re.search(r"(?<![\w.$/])/[A-Za-z][\w.-]*/", text)
    assert not re.search(r"(?<!PROJECT/)tests/data/torchlogs", text)


# Text as it comes.


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_windows_line_ends_change_nothing(path):
    text = path.read_text(encoding="utf-8")
    assert parse(text.replace("\n", "\r\n")) == parse(text)


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_without_prefixes_only_the_compile_ids_are_lost(path):
    text = path.read_text(encoding="utf-8")
    assert without_lines(parse(without_prefixes(text))) == without_lines(parse(text), "compile_id")


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_lines_that_others_print_between_messages_change_nothing(path):
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    foreign = ["step 3: loss 0.25", "    - 0/0: not a guard", "W0101 00:00:00.000000 7 a/b.py:1] [0/0] else"]
    starts = {fact.line for fact in facts(parse(text))}
    mixed = [new for at, line in enumerate(lines, 1) for new in (*(foreign if at in starts else ()), line)]
    assert without_lines(parse("\n".join([*mixed, *foreign]))) == without_lines(parse(text))


@pytest.mark.parametrize("release", RELEASES)
def test_foreign_lines_after_a_message_without_prefixes_are_not_taken_into_it(release):
    for program in ("two_entries_rejected", "break_repeated", "limit_hit"):
        text = without_prefixes(recorded(release, program))
        assert parse(text + "step 3: loss 0.25\n") == parse(text)


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_a_log_cut_anywhere_gives_the_facts_before_the_cut(path):
    text = path.read_text(encoding="utf-8")
    whole = parse(text)
    step = max(1, len(text) // 400)
    for end in range(0, len(text), step):
        cut = parse(text[:end])
        for some, every in zip(lists(cut), lists(whole), strict=True):
            # All but the last were complete before the cut.
            assert some[:-1] == every[: max(0, len(some) - 1)]
            assert len(some) <= len(every)


@pytest.mark.parametrize("release", RELEASES)
def test_a_message_cut_before_its_essential_line_is_not_counted(release):
    for program in ("break_on_tensor_branch", "shape_of_argument", "break_skips_frame"):
        first_line = recorded(release, program).partition("\n")[0]
        assert parse(first_line) == parse(first_line + "\n") == Log()
    two_lines = "\n".join(recorded(release, "shape_of_argument").split("\n")[:2])
    assert parse(two_lines) == Log()


@pytest.mark.parametrize("release", RELEASES)
def test_a_limit_cut_after_its_first_line_is_still_a_limit(release):
    text = recorded(release, "limit_hit")
    (hit,) = parse(text[: text.index("   function:")]).limits
    assert (hit.limit, hit.function, hit.last_reason, hit.lineno) == (3, "", "", 0)


@pytest.mark.parametrize(
    "text", ["", "\n", "\r\n\r\n", "no log at all\n", "\x00\ufffd", "Reason: none", "- 0/0: x == 1"]
)
def test_text_without_messages_gives_no_facts(text):
    assert parse(text) == Log()


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_two_logs_one_after_the_other_give_the_facts_of_both(path):
    first = path.read_text(encoding="utf-8")
    for other in RECORDED[::7] + [path]:
        second = other.read_text(encoding="utf-8")
        for change in (str, without_prefixes):
            before, after = change(first), change(second)
            moved = before.count("\n")
            for some, more, both in zip(
                lists(parse(before)), lists(parse(after)), lists(parse(before + after)), strict=True
            ):
                shifted = [dataclasses.replace(fact, line=fact.line + moved) for fact in more]
                assert [*some, *shifted] == [*both]


def test_ranks_restarts_and_guards_over_several_lines_are_read():
    prefix = "[rank1]:V0131 23:59:59.123000 9 torch/_dynamo/guards.py:1] [2/3_1] [__recompiles] "
    lines = [
        "Recompiling function <lambda> in a file.py:7",
        "    triggered by the following guard failure(s):",
        "    - 2/2_1: mode == 'a",
        "    - b'",
        "    - User stack trace:",
        '    -   File "a file.py", line 8, in <lambda>',
        "    -     return x * 2",
        "    - 2/0: n == 3",
    ]
    (only,) = parse("\n".join(prefix + line for line in lines)).recompiles
    assert (only.compile_id, only.function, only.file, only.lineno) == ("2/3_1", "<lambda>", "a file.py", 7)
    assert only.failures == (GuardFailure("2/2_1", "mode == 'a\nb'"), GuardFailure("2/0", "n == 3"))


def test_the_verbose_recompile_log_is_read():
    text = (
        "Recompiling function f in f.py:1\n    triggered by the following guard failure(s):\n"
        "    guard 0 failures:\n    - 0/1: n == 4\n\n    guard 1 failures:\n    - 0/0: n == 3\n"
    )
    (only,) = parse(text).recompiles
    assert only.failures == (GuardFailure("0/1", "n == 4"), GuardFailure("0/0", "n == 3"))


def test_a_frame_skipped_outside_tracing_is_read_in_the_newer_wording():
    """Its text is in the sources of 2.13; no program was found that makes that release log it."""
    text = (
        "Graph break: torch.compile cannot properly resume from this graph break, which results in a skip.\n"
        "torch.compile will skip tracing the frame f (f.py line 1) and fall back to eager.\n"
        "The graph break occurred in the following user code:\n"
        '  File "f.py", line 3, in f\n    return x.data.foo()\n\n'
        "Traceback (most recent call last):\n"
        '  File "$TORCH/_dynamo/exc.py", line 9, in unimplemented\n    raise Unsupported(msg)\n'
        "torch._dynamo.exc.Unsupported: Unsupported method\n  Explanation: none\n\n"
        'from user code:\n   File "f.py", line 3, in f\n    return x.data.foo()\n'
    )
    (only,) = parse(text).breaks
    assert (only.file, only.lineno, only.source) == ("f.py", 3, "return x.data.foo()")
    assert only.label == "Unsupported: Unsupported method"
    assert only.reason.endswith("Explanation: none")
    assert only.frame_skipped


# Guards that this machine cannot make fail, or that belong to other releases.

KEYS = "DispatchKeySet({0}, BackendSelect, ADInplaceOrView, Autograd{0})"
MOVED = f"expected {KEYS.format('CPU')}, actual {KEYS.format('CUDA')}"
CLASS = "0/0: ___check_type_id(c, 94), type=<class 'a.Left'>  # f(c) (HINT: type Left)"


@pytest.mark.parametrize(
    ("text", "assumption"),
    [
        (
            f"tensor 'x' dispatch key set mismatch. {MOVED}",
            Assumption("device", "x", None, "CPU", "CUDA"),
        ),
        (
            "tensor 'L['x']' Tensor device index mismatch. Expected device index to be 0, actual 1",
            Assumption("device", "x", None, "0", "1"),
        ),
        ("L['self'].mode == <Mode.FAST: 1>", Assumption(ATTRIBUTE, "self.mode", None, "<Mode.FAST: 1>")),
        ("L['d']['a == b'] == 'c # d'   # note", Assumption(VALUE, "d['a == b']", None, "'c # d'")),
        ("___tuple_iterator_len(it) == 3", Assumption("container-length", "it", None, "3")),
        ("not ___dict_contains('a', G['d'])", Assumption("container-length", "G['d']", None, "'a' absent")),
        ("list(L['d'].keys()) == ['a']", Assumption("container-length", "d", None, "key ['a']")),
        ("2 <= x.size()[0] <= 9", Assumption(SHAPE, "x", 0, "2 <= x.size()[0] <= 9")),
        ("x.stride()[1] == 4", Assumption("stride", "x", 1, "4")),
        ("L['n'] % 2 == 0", Assumption(VALUE, "n", None, "n % 2 == 0")),
        ("x.storage_offset() == 0", Assumption("other", "x", None, "0")),
        ("GLOBAL_STATE changed: grad_mode num_threads ", Assumption(GLOBAL, "grad_mode, num_threads")),
        (
            "Cache line invalidated because L['block'] got deallocated",
            Assumption("object-identity", "block", None, "alive", "deallocated"),
        ),
        (CLASS, Assumption("input-type", "c", None, "a.Left")),
        (
            "0/0: ___check_obj_id(L['act'].__code__, 140)",
            Assumption("object-identity", "act.__code__"),
        ),
        (CLASS.replace("(c,", "(G['c'],", 1), Assumption("global-state", "G['c']", None, "a.Left")),
        (CLASS.replace("(c,", "(L['self'].c,", 1), Assumption("module-attribute", "self.c", None, "a.Left")),
        (f"{CLASS}\nUser stack trace:\n  File", Assumption("input-type", "c", None, "a.Left")),
        ("___check_metadata_14_c0/0", Assumption("other", "")),
        ("BACKEND_MATCH failure: torch.compile detected different backends.", Assumption("other", "")),
        ("Unable to find recompilation reasons", Assumption("other", "")),
        ("", Assumption("other", "")),
    ],
)
def test_a_guards_text_gives_its_assumption(text, assumption):
    assert classify_guard(text) == assumption


@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_kinds_come_from_the_closed_list_however_a_guard_is_cut(path):
    for recompile in parse(path.read_text(encoding="utf-8")).recompiles:
        for failure in recompile.failures:
            for end in range(len(failure.text) + 1):
                assumption = classify_guard(failure.text[:end])
                assert assumption.kind in guards.KINDS
                assert assumption.describe()


def test_nesting_too_deep_to_parse_is_other():
    assert classify_guard("x" + ".a" * 20_000 + " == 1").kind == "other"


@pytest.mark.parametrize(
    ("assumption", "words"),
    [
        (Assumption("shape", "x", None, "1", "2"), "x: rank mismatch (expected 1, actual 2)"),
        (Assumption("dtype", "idx", None, "Long", "Int"), "idx: dtype mismatch (expected Long, actual Int)"),
        (Assumption("python-value", "n", None, "3"), "n: python value changed (expected 3)"),
        (Assumption("grad-mode", "grad_mode"), "grad_mode: grad mode changed"),
        (Assumption("other", ""), "assumption changed"),
    ],
)
def test_an_assumption_describes_itself_in_one_line(assumption, words):
    assert assumption.describe() == words


@pytest.mark.parametrize("module", [guards, torchlog], ids=lambda module: module.__name__)
def test_the_reader_needs_only_the_standard_library(module):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    assert "re" in modules
    assert {module.split(".")[0] for module in modules} <= sys.stdlib_module_names | {"complab"}
