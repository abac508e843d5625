"""Whatever a call leaves is compared: values, arguments, gradients, state; and a difference says where."""

import dataclasses
import math
from types import ModuleType

import pytest
import torch

from complab.measure import remains

TIGHT = {"rtol": 1e-4, "atol": 1e-5}


def of(returned, *arguments):
    return remains.of_call(returned, arguments, {}, {})


def test_equal_results_leave_no_difference():
    assert remains.differences(of(torch.ones(3)), of(torch.ones(3)), TIGHT) == []


def test_a_copy_is_kept_so_that_a_later_change_is_none_of_the_call():
    kept = torch.zeros(2)
    before = of(kept)
    kept += 1
    assert torch.equal(before.returned[""], torch.zeros(2))


def test_a_change_in_an_argument_alone_is_found():
    changed, unchanged = torch.ones(2), torch.zeros(2)
    (found,) = remains.differences(of(torch.ones(1), unchanged), of(torch.ones(1), changed), TIGHT)
    assert (found.where, found.name, found.largest, found.within) == ("argument", "[0]", 1.0, False)


def test_a_small_difference_is_told_and_within():
    (found,) = remains.differences(of(torch.ones(4)), of(torch.ones(4) + 1e-6), TIGHT)
    assert found.within and found.largest == pytest.approx(1e-6, rel=0.1)


@dataclasses.dataclass
class Output:
    scores: torch.Tensor
    cache: dict


def test_nested_outputs_are_compared_leaf_by_leaf_and_named():
    before, after = (
        Output(torch.zeros(1), {"k": [torch.zeros(2), torch.full((2,), value)]}) for value in (1.0, 2.0)
    )
    (found,) = remains.differences(of(before), of(after), TIGHT)
    assert found.name == ".cache['k'][1]"


@pytest.mark.parametrize(
    ("expected", "actual", "told"),
    [
        (torch.ones(2), torch.ones(3), "shape"),
        (torch.ones(2), torch.ones(2).double(), "dtype"),
        (1, "1", "eager 1, compiled '1'"),
        (True, False, "eager True, compiled False"),
    ],
)
def test_what_cannot_be_subtracted_differs_without_a_size(expected, actual, told):
    (found,) = remains.differences(of(expected), of(actual), TIGHT)
    assert not found.within and math.isnan(found.largest) and told in found.told


def test_two_nans_in_one_place_are_the_same_and_one_alone_is_not():
    nan = torch.tensor([1.0, math.nan])
    assert remains.differences(of(nan), of(nan.clone()), TIGHT) == []
    (found,) = remains.differences(of(torch.tensor([1.0, 2.0])), of(nan), TIGHT)
    assert not found.within


def test_an_integer_that_differs_by_one_is_compared_exactly_as_far_as_the_tolerance_says():
    (found,) = remains.differences(of(torch.tensor([1000])), of(torch.tensor([1001])), TIGHT)
    assert not found.within


def test_a_wider_type_is_no_difference_where_that_is_what_was_asked():
    assert remains.differences(of(torch.ones(2)), of(torch.ones(2).double()), TIGHT, widened=True) == []


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.steps += 1
        self.seen += x.sum()
        return x


def test_state_that_a_call_changed_is_told_by_name():
    model = Counter()
    state = remains.State(model, ModuleType("subject"))
    assert state.look() == set()
    model(torch.ones(2))
    assert state.look() == {"steps", "seen"}
    assert state.now["steps"] == 1 and state.now["seen"].item() == 2


def test_a_write_that_leaves_the_version_alone_is_a_change():
    model = Counter()
    state = remains.State(model, ModuleType("subject"))
    model.seen.data.add_(1)
    assert state.look() == {"seen"} and state.look() == set()
    model.seen.numpy()[0] = 5
    assert state.look() == {"seen"} and state.now["seen"].item() == 5


def test_a_global_of_the_subject_is_state():
    module = ModuleType("subject")
    module.level, module.helper = 0, len
    state = remains.State(len, module)
    module.level = 3
    assert state.look() == {"global level"}


def test_random_streams_move_with_each_number_drawn():
    torch.manual_seed(0)
    before = remains.random_streams()
    assert remains.random_streams() == before
    torch.rand(1)
    assert remains.random_streams() != before


def test_state_is_found_in_closures_globals_and_the_programs_own_objects(monkeypatch):
    module = ModuleType("subject")
    module.net = torch.nn.Linear(2, 2)
    module.layers = [torch.nn.Linear(1, 1, bias=False)]
    scale, holder = torch.ones(2), Holder(3)

    def inner(x):
        return x * scale

    def model(x):
        return inner(x) + holder.step

    monkeypatch.setattr(remains, "PROGRAMS", {__name__})
    state = remains.State(model, module)
    assert {name for name in state.now if not name.endswith("training")} == {
        "closure scale",
        "closure holder.step",
        "global net.weight",
        "global net.bias",
        "global net.in_features",
        "global net.out_features",
        "global layers[0].weight",
        "global layers[0].in_features",
        "global layers[0].out_features",
    }
    holder.step += 1
    assert state.look() == {"closure holder.step"}


class Holder:
    def __init__(self, step):
        self.step = step


def test_an_own_object_is_looked_into_once_and_another_ones_not_at_all(monkeypatch):
    held = Holder(Holder(1))
    held.step.back = held
    assert dict(remains.leaves(held, "h")) == {"h": held}
    monkeypatch.setattr(remains, "PROGRAMS", {__name__})
    assert list(dict(remains.leaves(held, "h"))) == ["h.step"]


def test_unrest_is_more_than_a_few_roundings_or_any_change_of_an_exact_value():
    (small,) = remains.differences(of(torch.ones(4)), of(torch.ones(4) + 1e-6), TIGHT)
    (large,) = remains.differences(of(torch.ones(4)), of(torch.ones(4) + 1e-5), TIGHT)
    (exact,) = remains.differences(of(1.0), of(1.0 + 1e-12), TIGHT)
    assert (small.is_unrest, large.is_unrest, exact.is_unrest) == (False, True, True)


def test_a_change_that_leaves_the_version_as_it_was_is_found():
    """As AOTAutograd writes back what a graph changed outside of autograd."""
    model = torch.nn.BatchNorm1d(2)
    state = remains.State(model, ModuleType("subject"))
    with torch.autograd._unsafe_preserve_version_counter(model.running_mean):
        model.running_mean.add_(1)
    assert state.look() == {"running_mean"}
