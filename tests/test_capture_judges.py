"""CAPTURED and STABLE are judged by what Dynamo kept and said, call by call."""

from collections import Counter

from complab.diagnose import capture

QUIET = {"modes": [], "skipped": [], "breaks": [], "recompiles": [], "limits": [], "refusals": None}


def line(call, fate="reuse", **facts):
    kept = int(fate == "new variant")
    return {**QUIET, "call": call, "fate": fate, "kept": kept, "graphs": kept, "runs": 1, **facts}


def stream(lines):
    return capture.Stream(lines, len(lines), Counter(each["fate"] for each in lines))


def recompiled(guard):
    return [["forward", [["0/0", guard]]]]


def compiled_at(calls, total, guard="tensor 'x' size mismatch at index 0. expected 8, actual 9"):
    return stream(
        [
            line(call, "new variant", recompiles=recompiled(guard) if call else [])
            if call in calls
            else line(call)
            for call in range(total)
        ]
    )


def test_one_graph_and_no_break_is_captured():
    assert capture.captured(compiled_at({0}, 5)).verdict == "pass"


def test_the_first_break_decides_and_the_others_are_counted():
    breaks = [["a.py", 3, "y = x.item()", "Unsupported Tensor.item() call", False]]
    breaks.append(["a.py", 9, "print(y)", "Failed to trace builtin operator", False])
    told = capture.captured(stream([line(0, "new variant", breaks=breaks), line(1, runs=3)]))
    assert (told.verdict, told.mechanism, told.place.line) == ("fail", "tensor-to-python", 3)
    assert "and at 1 other place" in told.evidence


def test_a_break_told_again_without_its_source_line_is_no_other_place():
    breaks = [["a.py", 3, source, "Dynamic shape operator", False] for source in ("x[mask]", "")]
    told = capture.captured(stream([line(0, "new variant", breaks=breaks)]))
    assert "x[mask]" in told.evidence and "other place" not in told.evidence


def test_a_skipped_frame_without_a_logged_break_fails():
    skipped = [["f", "a.py", 1, "graph break in loop: Data-dependent branching"]]
    told = capture.captured(stream([line(0, "frame skipped", skipped=skipped, runs=0)]))
    assert (told.verdict, told.mechanism) == ("fail", "data-dependent-branch")


def test_a_dispatch_mode_explains_that_nothing_ran():
    told = capture.captured(stream([line(0, "nothing compiled", modes=["FlopCounterMode"], runs=0)]))
    assert told.mechanism == "dispatch-mode-active"


def test_several_graphs_in_a_call_are_no_single_graph_even_without_a_message():
    told = capture.captured(stream([line(0, "new variant"), line(1, runs=2)]))
    assert told.verdict == "fail"


def test_options_that_disable_compiling_capture_nothing():
    disabled = capture.Stream([], 3, Counter(), disabled=True)
    assert capture.captured(disabled).verdict == "fail"


def test_two_recompiles_are_warm_up_wherever_they_come():
    assert capture.stable(compiled_at({0, 1, 2}, 12), []).verdict == "pass"
    assert capture.stable(compiled_at({0, 11}, 12), []).verdict == "pass"


def test_recompiles_that_end_are_warm_up():
    assert capture.stable(compiled_at({0, 1, 2, 3, 4}, 20), []).verdict == "pass"


def test_recompiles_up_to_the_end_recur():
    told = capture.stable(compiled_at({0, 2, 4, 6, 8}, 10), [])
    assert (told.verdict, told.mechanism) == ("fail", "shape")
    assert "4 calls of 10 recompile" in told.evidence


def test_a_limit_fails_however_calm_the_stream_is_afterwards():
    limits = [["recompile_limit", 8, "forward", "0/0: self.step == 0"]]
    guard = recompiled("self.step == 0")
    lines = [
        line(0, "refused attempt", limits=limits, recompiles=guard),
        *(line(call) for call in range(1, 40)),
    ]
    told = capture.stable(stream(lines), [])
    assert (told.verdict, told.mechanism) == ("fail", "module-attribute")


def test_what_moved_in_the_input_is_told_beside_the_guard():
    moved = [
        {
            "place": "argument",
            "name": "x",
            "path": "[0]",
            "property": "size at index 0",
            "values": ["8", "9", "10"],
            "distinct": 3,
        }
    ]
    told = capture.stable(compiled_at({0, 2, 4, 6, 8}, 10), moved)
    assert "x size at index 0 takes 3 values: 8, 9, 10" in told.evidence


def test_of_several_that_moved_the_one_whose_guard_failed_is_told():
    def attribute(name, distinct):
        values = [str(value) for value in range(distinct)]
        told = {"place": "state", "name": name, "path": name, "property": "value"}
        return told | {"values": values, "distinct": distinct}

    lines = [
        line(
            call, "new variant" if call else "reuse", kept=1, recompiles=recompiled(f"self.passes == {call}")
        )
        for call in range(8)
    ]
    told = capture.stable(stream(lines), [attribute("tag", 22), attribute("passes", 7)])
    assert told.mechanism == "module-attribute"
    assert "; passes value takes 7 values" in told.evidence
