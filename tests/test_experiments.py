"""What single experiments rest on holds on a capture that compiles nothing."""

import io

import pytest
import torch

import e8_region
import e9_backends
import e13_stances
from complab import torchlog
from complab.evidence import Row
from complab.measure import capture, dynamo, ledger, workload
from complab.measure.bench import Bench
from complab.measure.policies import BACKEND_POLICIES, CACHED_BACKENDS, compile_with

SIZES = {"vocabulary": 16, "dim": 8, "heads": 2, "blocks": 1, "max_length": 8}


@pytest.fixture(autouse=True)
def clean_dynamo():
    """No test sees what another has compiled."""
    capture.hard_reset()
    yield
    capture.hard_reset()


# e8: the compiled region of a training step.


def trained(wrap_model=lambda model: model, wrap_step=lambda step: step) -> list[float]:
    """Losses of three steps from one seed."""
    model = workload.build_model(SIZES, 1, "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = wrap_step(e8_region.training_step(wrap_model(model), optimizer))
    batch = workload.build_training_batch((2, 4), SIZES["vocabulary"], 1, "cpu")
    return [step(*batch).item() for _ in range(3)]


def captured(function):
    return torch.compile(function, backend="eager")


def test_a_training_step_learns_and_repeats_itself():
    losses = trained()
    assert losses == sorted(losses, reverse=True)
    assert trained() == losses


def test_the_forward_pass_of_a_step_is_one_graph():
    with capture.capture_logs(graph_breaks=True) as log:
        assert trained(wrap_model=captured) == pytest.approx(trained(), rel=1e-5)
    assert torchlog.parse(log.getvalue()).breaks == ()
    assert dynamo.graphs_captured() == 1


def test_a_whole_step_breaks_where_gradients_are_cleared_and_computed_and_in_the_optimizer():
    with capture.capture_logs(graph_breaks=True) as log:
        assert trained(wrap_step=captured) == pytest.approx(trained(), rel=1e-5)
    breaks = torchlog.parse(log.getvalue()).breaks
    assert len(breaks) == 4
    assert [item.source for item in breaks[:2]] == ["optimizer.zero_grad()", "loss.backward()"]
    assert all(item.file.endswith("torch/optim/optimizer.py") for item in breaks[2:])
    # The forward pass and the update: what lies between runs in eager.
    assert dynamo.graphs_captured() == 2


def test_a_step_that_updates_one_parameter_wrongly_is_caught_and_not_timed():
    settings = {"device": "cpu", "tolerance": {"rtol": 1e-4, "atol": 1e-4}, "steady_caches": ["cold"]}
    cell = {"policy": "forward", "cache": "cold"}
    bench = Bench({"cell": cell, "config": settings}, io.StringIO())
    model, loss = workload.build_model(SIZES, 1, "cpu"), torch.zeros(())
    right = e8_region._state(model, loss)
    with torch.no_grad():
        model.tokens.weight[3] += 1e-3
    assert not bench.agree(e8_region.CASE, right, e8_region._state(model, loss), call=0)
    bench.steady({e8_region.CASE: (lambda: None, lambda: None)})
    assert {row["metric"] for row in bench.rows} == {"within_tolerance", "bitwise_equal", "max_abs_diff"}


# e9: backends.


def test_each_backend_policy_names_its_backend_and_one_of_them_keeps_a_cache():
    backends = [options["backend"] for options in BACKEND_POLICIES.values()]
    assert backends == ["eager", "aot_eager", "inductor"]
    assert CACHED_BACKENDS == ("inductor",)


@pytest.mark.parametrize("policy", ["backend-eager", "backend-aot-eager"])
def test_backends_without_code_generation_change_no_bit(policy):
    model = workload.build_model(SIZES, 1, "cpu")
    tokens, _ = workload.build_training_batch((2, 4), SIZES["vocabulary"], 1, "cpu")
    with torch.no_grad():
        assert torch.equal(compile_with(policy, model)(tokens), model(tokens))
    assert dynamo.graphs_captured() == 1


def test_a_batch_is_the_same_for_a_seed_and_its_targets_are_not_its_tokens():
    one, other = (workload.build_training_batch((8, 64), 512, 7, "cpu") for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    assert not torch.equal(*one)
    assert {tuple(tensor.shape) for tensor in one} == {(8, 64)}


def numberless(tokens):
    return torch.full((*tokens.shape, SIZES["vocabulary"]), float("nan"))


def test_a_backend_whose_output_is_no_number_fails_correct_and_is_not_timed(monkeypatch):
    settings = {
        "device": "cpu",
        "seed": 1,
        "workload": SIZES,
        "tolerance": {"rtol": 1e-4, "atol": 1e-4, "reason": "sums in another order"},
        "settings": {"batch": 2, "length": 4},
    }
    cell = {"policy": "backend-eager", "cache": "none"}
    bench = Bench({"cell": cell, "config": settings}, io.StringIO())
    monkeypatch.setattr(e9_backends.policies, "compile_with", lambda policy, model: numberless)
    e9_backends.timed(bench)
    told = {row["metric"] for row in bench.rows}
    assert {"within_tolerance", "eager_loss", "eager_error"} <= told
    assert not told & {"loss", "compiled_error", "first_call"}
    rows = [Row("e9_backends", **cell, replicate=1, **row) for row in bench.rows]
    region = ledger.fill(rows, settings["tolerance"], 8)["regions"][e9_backends.CASE]
    assert (region["first_failing_level"], region["mechanism"]) == ("CORRECT", "")


# e13: stances.


@pytest.mark.parametrize("stance", ["default", "fail_on_recompile", "force_eager", "eager_on_recompile"])
def test_the_first_stances_are_offered(stance):
    assert dynamo.offers_stance(stance)


def test_an_unknown_stance_is_accepted_until_the_next_call_and_told_apart():
    name = e13_stances.STANCES[e13_stances.UNKNOWN]
    assert not dynamo.offers_stance(name)
    compiled = captured(torch.sin)
    torch.compiler.set_stance(name)
    try:
        with pytest.raises(RuntimeError, match=r"invalid torch\.compile stance"):
            compiled(torch.ones(2))
    finally:
        torch.compiler.set_stance("default")


def test_an_error_without_a_message_is_told_by_its_class():
    def silent(tokens):
        raise AssertionError

    bench = Bench(
        {"cell": {"policy": "default", "cache": "cold"}, "config": {"device": "cpu"}}, io.StringIO()
    )
    e13_stances._call(bench, "unknown", 1, "new_shape", silent, torch.zeros(1, 4), None)
    told = {row["metric"]: row for row in bench.rows}
    assert told["new_shape_raises"]["value"] == 1
    assert told["new_shape_raises"]["detail"] == told["new_shape_compiled"]["detail"] == "AssertionError"


def test_asking_for_a_stance_leaves_none_set():
    for name in e13_stances.STANCES.values():
        dynamo.offers_stance(name)
    captured(torch.sin)(torch.ones(2))
    assert dynamo.graphs_captured() == 1


def test_whether_the_later_stances_are_offered_is_a_capability():
    told = dynamo.capabilities()
    for name in dynamo.LATER_STANCES:
        assert told[f"stance_{name}"] == dynamo.offers_stance(name)
        assert name in e13_stances.STANCES


def doubled(x):
    return x * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_whether_a_call_enters_compiled_code_is_seen_whatever_the_backend(backend):
    compiled, x = torch.compile(doubled, backend=backend), torch.ones(2)
    compiled(x)
    with capture.entered_regions() as entered:
        compiled(x)
        compiled(x)
    assert len(entered) == 2
    with torch.compiler.set_stance("force_eager"), capture.entered_regions() as entered:
        compiled(x)
    assert entered == []


def test_forgotten_variants_are_no_first_call_of_a_stance_that_compiles_the_second():
    for _ in range(2):
        dynamo.forget_variants()
        before = dynamo.graphs_captured()
        with torch.compiler.set_stance("eager_then_compile"):
            compiled = torch.compile(doubled, backend="eager")
            compiled(torch.ones(3))
            assert dynamo.graphs_captured() == before
            compiled(torch.ones(3))
            assert dynamo.graphs_captured() == before + 1
