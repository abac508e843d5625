"""What must be in the evidence of the experiments on any machine: counts, fates, orders of events.

Nothing here is a time. Expected fates follow from the stream and the recompile limit alone.
"""

import json
from collections import Counter
from pathlib import Path

from complab import evidence, once
from complab.config import Settings

FATES = ("new_variants", "reuses", "refused_attempts", "eager_calls", "skipped_frames")


def static_fates(lengths: list[int], limit: int) -> list[str]:
    """What happens to each request when every length needs a variant of its own."""
    kept: set[int] = set()
    refused = False
    fates = []
    for length in lengths:
        if length in kept:
            fates.append("reuses")
        elif len(kept) < limit:
            kept.add(length)
            fates.append("new_variants")
        else:
            # The first unmatched length is tried and refused; from then on nothing is tried.
            fates.append("eager_calls" if refused else "refused_attempts")
            refused = True
    return fates


class Run:
    """The verified cells of a run: every planned policy and state, in as many processes as it has."""

    def __init__(self, settings: Settings, results: Path):
        self.settings = settings
        run = results / settings.run
        self.records = {
            cell: evidence.verify(run / cell.path, settings.run, cell) for cell in settings.cells()
        }

    def of(self, experiment: str, policy: str) -> list[evidence.Record]:
        """Records of all cache states and replicates of a policy."""
        return [
            record
            for cell, record in self.records.items()
            if (cell.experiment, cell.policy) == (experiment, policy)
        ]

    def lengths(self, experiment: str) -> list[int]:
        return self.settings["streams"][self.settings.experiment(experiment)["settings"]["stream"]]

    @property
    def limit(self) -> int:
        return self.settings["recompile_limit"]


def fates(record: evidence.Record, case: str = "model") -> list[str]:
    return [row.metric for row in record.rows if row.metric in FATES and row.case == case]


def values(record: evidence.Record, metric: str, case: str) -> list[float]:
    return [row.value for row in record.rows if (row.metric, row.case) == (metric, case)]


def probed(record: evidence.Record) -> bool:
    """Whether the cell must tell what can be captured; others may."""
    return (record.cell.cache, record.cell.replicate) == ("cold", once.REPLICATE)


def region(record: evidence.Record, case: str) -> dict:
    return json.loads((record.folder / evidence.LEDGER).read_text(encoding="utf-8"))["regions"][case]


def every_state_is_proven(run: Run) -> None:
    proven = {"none": "not-applicable", "cold": "cold-proven", "warm": "warm-proven"}
    for cell, record in run.records.items():
        assert record.verdict == proven[cell.cache], (str(cell), record.provenance["cache"]["reasons"])


def every_output_is_right(run: Run) -> None:
    for cell, record in run.records.items():
        right = [row.value for row in record.rows if row.metric == "within_tolerance"]
        assert all(right), str(cell)
        # A loop over varying shapes is timed as a whole and compared with nothing.
        compared = cell.policy not in ("eager", "shape-varying", "forensics", "planted-faults")
        assert bool(right) or not compared, str(cell)


def static_fills_the_limit_and_is_refused_once(run: Run) -> None:
    for experiment in ("e1_opening_failure", "e6_dynamic_shapes"):
        expected = static_fates(run.lengths(experiment), run.limit)
        for record in run.of(experiment, "static"):
            assert fates(record) == expected, str(record.cell)
            assert values(record, "limit_hits", "model") == [1]
            assert values(record, "log_recompiles", "model") == [run.limit]
            told = region(record, "model")
            assert told["first_failing_level"] == "STABLE"
            assert "size mismatch at index 1" in told["sentence"]


def default_recompiles_once_and_is_silent(run: Run) -> None:
    for experiment in ("e1_opening_failure", "e6_dynamic_shapes"):
        for record in run.of(experiment, "default"):
            expected = ["new_variants"] * 2 + ["reuses"] * (len(run.lengths(experiment)) - 2)
            assert fates(record) == expected, str(record.cell)
            assert values(record, "log_recompiles", "model") == [1]
            assert values(record, "limit_hits", "model") == [0]
            assert region(record, "model")["first_failing_level"] is None


def dynamic_and_marked_compile_once(run: Run) -> None:
    for policy in ("dynamic", "mark-dynamic"):
        for record in run.of("e6_dynamic_shapes", policy):
            assert Counter(fates(record))["new_variants"] == 1, str(record.cell)
            assert Counter(fates(record))["refused_attempts"] == 0
            assert values(record, "log_recompiles", "model") == [0]


def the_instruments_see_one_break(run: Run) -> None:
    for record in run.of("e3_graph_breaks", "default"):
        assert values(record, "log_breaks", "with_break") == [1]
        (told,) = [row for row in record.rows if (row.metric, row.case) == ("log_breaks", "with_break")]
        assert "scripts/e3_graph_breaks.py" in told.detail
        assert "if x.sum().item() > 0:" in told.detail
        assert "Tensor.item" in told.detail
        assert region(record, "with_break")["first_failing_level"] == "CAPTURED"
        assert region(record, "without_break")["first_failing_level"] is None
        if probed(record):
            for case, broken in {"with_break": 1, "model": 0, "without_break": 0}.items():
                assert values(record, "explain_graphs", case) == [1 + broken]
                assert values(record, "explain_breaks", case) == [broken]
                assert values(record, "fullgraph_accepts", case) == [1 - broken]


def only_a_repair_without_a_break_keeps_the_chain_whole(run: Run) -> None:
    for policy, breaks in {"clean": 0, "print": 1, "return": 0, "flag-off": 0, "disable-helper": 1}.items():
        for record in run.of("e7_observer_effect", policy):
            assert values(record, "log_breaks", "chain") == [breaks], str(record.cell)
            # A frame that breaks inside its loop is given up as a whole.
            assert values(record, "graphs_captured", "chain") == [1 - breaks], str(record.cell)
            if breaks:
                assert values(record, "log_breaks", "between") == [1], str(record.cell)
                assert values(record, "graphs_captured", "between") == [2], str(record.cell)


def logs_and_traces_change_neither_counts_nor_hits(run: Run) -> None:
    for record in run.of("e7_observer_effect", "observers"):
        for observer in ("graph_breaks", "recompiles", "guards", "trace", "profiler"):
            for metric in ("changes_counts", "changes_hits"):
                assert values(record, metric, observer) == [0], (str(record.cell), observer, metric)
        assert values(record, "fxgraph_hits", "control") == [1]
        assert values(record, "changes_counts", "explain") == [1]


def the_trace_tells_what_log_and_counters_tell(run: Run) -> None:
    for record in run.of("e14_structured_trace", "default"):
        for case, (graphs, breaks, recompiles) in {
            "model": (1, 0, 0),
            "with_break": (2, 1, 0),
            "stream": (2, 0, 1),
        }.items():
            for metrics, expected in (
                (("trace_graphs", "graphs_captured", "trace_cache_misses", "fxgraph_misses"), graphs),
                (("trace_breaks", "log_breaks"), breaks),
                (("trace_recompiles", "log_recompiles"), recompiles),
            ):
                for metric in metrics:
                    assert values(record, metric, case) == [expected], (case, metric)


def a_program_that_fails_in_eager_is_no_compiler_bug(run: Run) -> None:
    for record in run.of("e2_eager_first", "default"):
        assert values(record, "eager_runs", "healthy") == [1]
        assert values(record, "compiled_runs", "healthy") == [1]
        assert values(record, "eager_runs", "assumes_64") == [0]
        assert values(record, "compiled_runs", "assumes_64") == [0]
        assert values(record, "same_cause", "assumes_64") == [1]
        told = region(record, "assumes_64")
        assert told["first_failing_level"] == "RUNS"
        assert "not a compiler bug" in told["sentence"]


def a_break_inside_a_loop_costs_the_frame_and_explain_misses_it(run: Run) -> None:
    for policy, (breaks, explained, skipped) in {
        "none": (0, 0, 0),
        "before-blocks": (1, 1, 0),
        "mid-stack": (1, 0, 1),
    }.items():
        for record in run.of("e4_break_location", policy):
            assert values(record, "log_breaks", "model") == [breaks], str(record.cell)
            assert values(record, "frames_skipped", "model") == [skipped], str(record.cell)
            if probed(record):
                assert values(record, "explain_breaks", "model") == [explained], str(record.cell)
                assert values(record, "fullgraph_accepts", "model") == [breaks == 0], str(record.cell)


def a_recompile_names_the_guard_of_every_entry(run: Run) -> None:
    lengths = run.lengths("e5_guards")
    expected = static_fates(lengths, run.limit)
    for record in run.of("e5_guards", "static"):
        assert fates(record) == expected
        recompiles = [row for row in record.rows if (row.metric, row.case) == ("recompiles", "model")]
        (third,) = [row for row in recompiles if row.call == lengths.index(64)]
        assert "expected 32, actual 64" in third.detail
        assert "expected 48, actual 64" in third.detail
        dtype = [row.detail for row in record.rows if (row.metric, row.case) == ("recompiles", "int32")]
        assert any("dtype mismatch. expected Long, actual Int" in detail for detail in dtype)


def dynamic_shapes_help_where_a_shape_varies_and_nowhere_else(run: Run) -> None:
    for record in run.of("e5_guards", "forensics"):
        for case, removed in {
            "shape": 1,
            "dtype": 0,
            "requires_grad": 0,
            "grad_mode": 0,
            "global": 0,
        }.items():
            assert values(record, "static_recompiles", case) == [1], case
            assert values(record, "removed_by_dynamic", case) == [removed], case


def a_compiled_forward_does_not_break_and_trains_alike(run: Run) -> None:
    for record in run.of("e8_region", "forward"):
        assert values(record, "log_break_messages", "step") == [0]


def inductor_is_the_first_layer_to_differ(run: Run) -> None:
    for policy in ("backend-eager", "backend-aot-eager", "backend-inductor"):
        for record in run.of("e9_backends", policy):
            (loss,), (expected,) = values(record, "loss", "model"), values(record, "eager_loss", "model")
            assert f"{loss:.5f}" == f"{expected:.5f}"
            assert values(record, "bitwise_equal", "model") == [policy != "backend-inductor"]


def the_bisection_names_the_layer_of_each_planted_fault(run: Run) -> None:
    layers = {"dynamo_fault": "dynamo", "aot_fault": "aot_autograd", "inductor_fault": "inductor"}
    for record in run.of("e9_backends", "planted-faults"):
        for case, layer in layers.items():
            told = [row.detail for row in record.rows if (row.metric, row.case) == ("faulty_layer", case)]
            assert told == [layer]


def the_limit_is_told_once_and_seen_lengths_go_on(run: Run) -> None:
    expected = static_fates(run.lengths("e12_limit"), run.limit)
    assert {"new_variants", "reuses", "refused_attempts", "eager_calls"} == set(expected)
    for record in run.of("e12_limit", "static"):
        assert fates(record) == expected
        assert values(record, "limit_hits", "model") == [1]


def fail_on_recompile_raises_for_a_new_length_only(run: Run) -> None:
    for record in run.of("e13_stances", "default"):
        assert values(record, "same_shape_raises", "fail_on_recompile") == [0]
        assert values(record, "new_shape_raises", "fail_on_recompile") == [1]
        assert values(record, "new_shape_compiled", "force_eager") == [0]
        assert values(record, "new_shape_compiled", "eager_on_recompile") == [0]


CLAIMS = (
    every_state_is_proven,
    every_output_is_right,
    static_fills_the_limit_and_is_refused_once,
    default_recompiles_once_and_is_silent,
    dynamic_and_marked_compile_once,
    the_instruments_see_one_break,
    a_program_that_fails_in_eager_is_no_compiler_bug,
    a_break_inside_a_loop_costs_the_frame_and_explain_misses_it,
    a_recompile_names_the_guard_of_every_entry,
    dynamic_shapes_help_where_a_shape_varies_and_nowhere_else,
    only_a_repair_without_a_break_keeps_the_chain_whole,
    a_compiled_forward_does_not_break_and_trains_alike,
    inductor_is_the_first_layer_to_differ,
    the_bisection_names_the_layer_of_each_planted_fault,
    the_limit_is_told_once_and_seen_lengths_go_on,
    fail_on_recompile_raises_for_a_new_length_only,
    logs_and_traces_change_neither_counts_nor_hits,
    the_trace_tells_what_log_and_counters_tell,
)
