"""Which compiler layer is the first that breaks a program?

A program runs without a compiler, then through ever more layers: Dynamo alone (backend `eager`),
AOTAutograd on top of it (`aot_eager`), Inductor on top of both (`inductor`). The first layer under which it
raises, or tells other numbers than eager does, is the faulty one. Eager runs twice: a program that fails by
itself, or does not repeat itself, says nothing about a compiler.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from complab.measure import compare, dynamo, policies

# What each backend adds to the one before it.
LAYERS = {"eager": "dynamo", "aot_eager": "aot_autograd", "inductor": "inductor"}
PROGRAM, NONE = "program", "none"


@dataclass(frozen=True)
class Run:
    """How one run compares with eager: its error, or the largest difference (NaN if not comparable)."""

    agrees: bool
    difference: float = float("nan")
    error: str = ""

    @property
    def told(self) -> str:
        """The error or the difference as one line."""
        return self.error or f"largest difference from eager {self.difference:.3g}"


@dataclass(frozen=True)
class Bisection:
    """The second eager run and the run under each backend; no backend was tried if eager failed."""

    eager: Run
    backends: dict[str, Run]

    @property
    def faulty_layer(self) -> str:
        """The first layer that does not agree, `none`, or `program` if eager fails or repeats nothing."""
        if not self.eager.agrees:
            return PROGRAM
        return next((LAYERS[name] for name, run in self.backends.items() if not run.agrees), NONE)


def bisect(
    make_program: Callable[[], Callable],
    make_arguments: Callable[[], tuple],
    tolerance: dict,
    seed: int = 0,
    **compile_options,
) -> Bisection:
    """Run a program without and with each layer and compare outputs and gradients with eager.

    Both factories are called before every run and torch is seeded right before the call, so a program may
    change its module, its arguments or the random state. Outputs are tensors, or tuples, lists and dicts
    of them; where they need gradients, those of their sum by the arguments are compared too.
    ``compile_options`` go to `torch.compile` under every backend.
    """

    def run(compile_: Callable) -> list[torch.Tensor]:
        program, arguments = compile_(make_program()), make_arguments()
        torch.manual_seed(seed)
        return _results(program(*arguments), arguments)

    try:
        expected = run(lambda program: program)
    except Exception as error:
        return Bisection(Run(False, error=_one_line(error)), {})
    eager = _compared(expected, lambda: run(lambda program: program), tolerance)
    backends = {}
    for name in LAYERS if eager.agrees else ():
        dynamo.forget_variants()
        cacheless = name not in policies.CACHED_BACKENDS
        with dynamo.cacheless() if cacheless else contextlib.nullcontext():
            backends[name] = _compared(
                expected,
                lambda name=name: run(
                    lambda program: torch.compile(program, backend=name, **compile_options)
                ),
                tolerance,
            )
    return Bisection(eager, backends)


def _compared(expected: list[torch.Tensor], run: Callable[[], list], tolerance: dict) -> Run:
    try:
        actual = run()
    except Exception as error:
        return Run(False, error=_one_line(error))
    if len(actual) != len(expected):
        return Run(False, error=f"{len(actual)} tensors instead of {len(expected)}")
    found = [compare.agreement(*pair, tolerance) for pair in zip(expected, actual, strict=True)]
    differences = [item.max_abs_diff for item in found]
    # A NaN is the largest of all.
    largest = max(differences, key=lambda value: (value != value, value), default=0.0)
    return Run(all(item.within for item in found), largest)


def _results(output, arguments: tuple) -> list[torch.Tensor]:
    """Every tensor of the output and, where it can be differentiated, the arguments' gradients."""
    told = list(_tensors(output))
    roots = [tensor for tensor in told if tensor.requires_grad]
    if roots:
        sum(root.sum() for root in roots).backward()
        told += [tensor.grad for tensor in _tensors(arguments) if tensor.grad is not None]
    return [_as_number(tensor.detach()) for tensor in told]


def _as_number(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.int8) if tensor.dtype == torch.bool else tensor


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _one_line(error: Exception) -> str:
    """Class and first two lines, since the first of Dynamo's may only name the backend."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"
