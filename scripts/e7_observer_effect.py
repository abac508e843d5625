"""What does looking at an intermediate value cost, and which way of looking leaves the program as it was?

A chain of pointwise operations that fuses into one loop is watched half-way: by a print of a number taken
out of the tensor, and by three repairs of it. The policy `observers` then holds the compiler's own
instruments against a process that has none.
"""

if __name__ == "__main__":  # Before torch: this process only starts and judges the one that measures.
    from complab.cell import main

    main(__file__)

import contextlib
import io
from functools import partial

import torch

from complab.measure import workload

LABEL = "half-way mean:"


class Chain(torch.nn.Module):
    """The chain, watched by nothing. Each step reads its input once, so that all fuse without recomputing."""

    def __init__(self, depth: int, debug: bool = False):
        super().__init__()
        self.depth = depth
        self.debug = debug

    def forward(self, x):
        for _ in range(self.depth):
            x = torch.relu(x * 1.01 - 0.005)
        return x


class Printing(Chain):
    """Prints half-way if the flag says so. No frame is resumed inside a loop, so all of it runs eager."""

    def forward(self, x):
        for step in range(self.depth):
            x = torch.relu(x * 1.01 - 0.005)
            if self.debug and step == self.depth // 2:
                print(LABEL, float(x.mean()))
        return x


class Returning(Chain):
    """Returns the value half-way as well, to be looked at outside."""

    def forward(self, x):
        half_way = x
        for step in range(self.depth):
            x = torch.relu(x * 1.01 - 0.005)
            if step == self.depth // 2:
                half_way = x
        return x, half_way


@torch.compiler.disable
def tell(x):
    """Print from where the tracer does not look."""
    print(LABEL, float(x.mean()))


class Helped(Chain):
    """Leaves the print to a helper that the tracer does not enter."""

    def forward(self, x):
        for step in range(self.depth):
            x = torch.relu(x * 1.01 - 0.005)
            if step == self.depth // 2:
                tell(x)
        return x


class PrintingBetween(Chain):
    """Prints between two loops, where the frame can be resumed: two graphs in place of none."""

    def forward(self, x):
        for _ in range(self.depth // 2 + 1):
            x = torch.relu(x * 1.01 - 0.005)
        print(LABEL, float(x.mean()))
        for _ in range(self.depth // 2 + 1, self.depth):
            x = torch.relu(x * 1.01 - 0.005)
        return x


class HelpedBetween(Chain):
    """Leaves the print between two loops to the helper."""

    def forward(self, x):
        for _ in range(self.depth // 2 + 1):
            x = torch.relu(x * 1.01 - 0.005)
        tell(x)
        for _ in range(self.depth // 2 + 1, self.depth):
            x = torch.relu(x * 1.01 - 0.005)
        return x


def _programs(policy: str, depth: int) -> dict[str, Chain]:
    """What a policy compiles, by case: `chain` looks inside the loop, `between` between two loops."""
    return {
        "clean": lambda: {"chain": Chain(depth)},
        "print": lambda: {"chain": Printing(depth, debug=True), "between": PrintingBetween(depth)},
        "return": lambda: {"chain": Returning(depth)},
        "flag-off": lambda: {"chain": Printing(depth, debug=False)},
        "disable-helper": lambda: {"chain": Helped(depth), "between": HelpedBetween(depth)},
        "observers": lambda: {"chain": Chain(depth)},
    }[policy]()


def subjects(bench):
    """What the capture probes and the observers look at, with its input."""
    settings = bench.settings["settings"]
    x = workload.build_square(settings["size"], bench.settings["seed"], bench.device)
    return {case: (program, (x,)) for case, program in _programs(bench.policy, settings["depth"]).items()}


@torch.no_grad()
def timed(bench):
    """Compile each program, compare with eager, and time all in one window; its prints are only counted."""
    printed, steady = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        for case, (program, (x,)) in subjects(bench).items():
            compiled = torch.compile(program)
            expected = program(x)
            with bench.capturing(case):
                seconds, actual = bench.clock.time(compiled, x)
            pairs = zip(_several(expected), _several(actual), strict=True)
            if all([bench.agree(case, *pair, call=index) for index, pair in enumerate(pairs)]):
                bench.record("first_call", seconds, "s", case=case)
            steady[case] = (partial(program, x), partial(compiled, x))
        bench.steady(steady)
    lines = [line for line in printed.getvalue().splitlines() if line.startswith(LABEL)]
    bench.say(f"{len(lines)} lines printed{f', the first of them: {lines[0]}' if lines else ''}")


def _several(outputs) -> tuple:
    return outputs if isinstance(outputs, tuple) else (outputs,)
