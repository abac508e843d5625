"""Each run of a compiled graph is counted, whatever backend made it and whatever marks it bears."""

import pytest
import torch

from complab.measure import regions


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_graphs_and_their_runs_are_counted(backend):
    torch._dynamo.reset()
    run, counting = regions.compile_counting(lambda x: torch.sin(x) * 2, {"backend": backend})
    for length in (3, 3, 4):
        run(torch.ones(length))
    assert (counting.compiled, counting.runs) == (2, 3)


def test_a_counted_graph_is_not_passed_by_for_the_one_it_wraps():
    def graph(*arguments):
        return arguments

    graph._torchdynamo_orig_callable = graph
    graph._boxed_call = True
    counted = regions.Counting(lambda module, inputs: graph, "own")(None, [])
    assert not hasattr(counted, "_torchdynamo_orig_callable")
    assert counted._boxed_call
