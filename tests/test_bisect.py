"""The first layer that breaks a program is named; a program at fault by itself is not blamed on one."""

import itertools
import math

import pytest
import torch

import e9_backends
from complab.measure import bisect, capture, dynamo
from complab.measure.bisect import NONE, PROGRAM

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(autouse=True)
def clean_dynamo():
    """No test sees what another has compiled."""
    capture.hard_reset()
    yield
    capture.hard_reset()


def arguments():
    return (torch.linspace(0, 1, 8, requires_grad=True),)


def bisected(program, make_arguments=arguments, **options) -> bisect.Bisection:
    return bisect.bisect(lambda: program, make_arguments, TOLERANCE, **options)


@pytest.mark.parametrize(
    ("case", "layer"), [("dynamo_fault", "dynamo"), ("aot_fault", "aot_autograd")], ids=["dynamo", "aot"]
)
def test_a_fault_is_found_in_the_layer_it_was_planted_in(case, layer):
    found = bisected(e9_backends.FAULTS[case], fullgraph=True)
    assert found.eager == bisect.Run(True, 0.0)
    assert found.faulty_layer == layer


@pytest.mark.slow
def test_other_random_numbers_are_a_fault_of_inductor():
    found = bisected(e9_backends.FAULTS["inductor_fault"], fullgraph=True)
    assert found.faulty_layer == "inductor"
    assert found.backends["aot_eager"] == bisect.Run(True, 0.0)
    assert found.backends["inductor"].difference > 1
    assert not found.backends["inductor"].error


@pytest.mark.slow
def test_a_healthy_program_has_no_faulty_layer():
    found = bisected(lambda x: {"sine": torch.sin(x), "both": [x * 2, x > 0.5]}, fullgraph=True)
    assert found.faulty_layer == NONE
    assert set(found.backends) == set(bisect.LAYERS)


def test_every_layer_above_a_fault_fails_too_and_says_why():
    backends = bisected(e9_backends.FAULTS["aot_fault"]).backends
    assert backends["eager"].agrees
    for name in ("aot_eager", "inductor"):
        assert not backends[name].agrees
        assert backends[name].error.startswith("BackendCompilerFailed")
        assert "data pointer" in backends[name].told


def test_a_program_that_fails_by_itself_is_no_compiler_bug():
    found = bisected(lambda x: x.reshape(3))
    assert found.faulty_layer == PROGRAM
    assert "invalid for input of size 8" in found.eager.error
    assert found.backends == {}


def test_a_program_that_does_not_repeat_itself_is_not_bisected():
    numbers = itertools.count()
    found = bisected(lambda x: x + next(numbers))
    assert (found.faulty_layer, found.backends) == (PROGRAM, {})
    assert found.eager.difference == 1


def test_a_program_that_draws_random_numbers_repeats_itself_under_the_seed():
    def draws_and_branches(x):
        return x + torch.rand_like(x) if x.sum() > 0 else x

    assert bisected(draws_and_branches, fullgraph=True).eager == bisect.Run(True, 0.0)


def test_a_program_may_change_its_arguments():
    assert bisected(lambda x: x.mul_(2), lambda: (torch.ones(4),), fullgraph=True).eager.agrees


def test_gradients_are_compared_as_well_as_outputs():
    class WrongGradient(torch.autograd.Function):
        calls = itertools.count()

        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient * next(WrongGradient.calls)

    found = bisected(WrongGradient.apply)
    assert found.faulty_layer == PROGRAM
    assert found.eager.difference == 1


def test_another_number_of_outputs_is_a_difference():
    counts = itertools.count(1)
    found = bisected(lambda x: [x] * next(counts), lambda: (torch.ones(4),))
    assert found.eager.error == "2 tensors instead of 1"


def test_a_number_that_is_none_is_never_the_same():
    found = bisected(lambda x: x / 0 * 0, lambda: (torch.ones(4),))
    assert found.faulty_layer == PROGRAM
    assert math.isnan(found.eager.difference)


def test_what_is_captured_without_a_cache_is_counted_apart():
    bisected(e9_backends.FAULTS["aot_fault"])
    assert dynamo.graphs_captured() == 1
    # AOTAutograd began a graph under aot_eager, and another one under inductor, which does look it up.
    assert dynamo.cacheless_counts() == {"graphs": 1, "unfinished": 1}
    capture.hard_reset()
    assert dynamo.cacheless_counts() == {"graphs": 0, "unfinished": 0}
