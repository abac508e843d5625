"""How much of a training step should one compile: nothing, the forward pass, or the whole step?

The same model, optimizer and batch are trained by an eager step and by a step whose forward pass, or
whose whole body, is compiled. Breaks are counted for each, and both steps are timed side by side.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

from functools import partial

import torch
import torch.nn.functional as functional

from complab.measure import policies, workload

CASE = "step"


def training_step(forward, optimizer):
    """A step that updates what ``optimizer`` holds and returns the loss before the update."""

    def step(tokens, targets):
        optimizer.zero_grad()
        loss = functional.cross_entropy(forward(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        # Not detached: that would be one more graph, which holds no operation to compile.
        return loss

    return step


def build_step(bench, region: str):
    """A freshly seeded model and its training step, compiled as far as ``region`` says."""
    settings = bench.settings["settings"]
    sizes = bench.settings["workload"] | {"blocks": settings["blocks"]}
    model = workload.build_model(sizes, bench.settings["seed"], bench.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"], eps=settings["epsilon"])
    if region == "forward":
        return model, training_step(policies.compile_with("default", model), optimizer)
    step = training_step(model, optimizer)
    return model, policies.compile_with("default", step) if region == "whole-step" else step


def _state(model, loss):
    """What must agree after a step: the loss, and every parameter the step has updated.

    A step divides each gradient by its own size plus epsilon, which therefore lies above rounding: a key's
    bias cancels in the softmax, and its gradient is nothing else.
    """
    parameters = [parameter.detach().flatten() for parameter in model.parameters()]
    return torch.cat([loss.detach().reshape(1), *parameters])


def timed(bench):
    """Train a few steps beside an eager twin, compare after each, then time both steps as they train on."""
    settings = bench.settings["settings"]
    shape = (settings["batch"], settings["length"])
    batch = workload.build_training_batch(
        shape, bench.settings["workload"]["vocabulary"], bench.settings["seed"], bench.device
    )
    eager_model, eager_step = build_step(bench, "eager")
    expected = []
    for number in range(settings["steps"]):
        loss = eager_step(*batch)
        bench.record("eager_loss", loss.item(), "1", case=CASE, call=number)
        expected.append(_state(eager_model, loss))
    compiled_pass = None
    if bench.policy != "eager":
        model, step = build_step(bench, bench.policy)
        with bench.capturing(CASE):
            _train_beside(bench, model, step, batch, expected)
        compiled_pass = partial(step, *batch)
    bench.steady({CASE: (partial(eager_step, *batch), compiled_pass)})


def _train_beside(bench, model, step, batch, expected):
    """Make the compiled steps whose eager results are given; the first one is the compile."""
    for number, state in enumerate(expected):
        seconds, loss = bench.clock.time(step, *batch)
        bench.record("loss", loss.item(), "1", case=CASE, call=number)
        agreed = bench.agree(CASE, state, _state(model, loss), call=number)
        if agreed and number == 0:
            bench.record("first_call", seconds, "s", case=CASE)
            bench.say(f"{CASE}: first call {seconds:.2f} s")
