"""Which compiled graphs did a call run, and why did each kept variant refuse it?

The program is compiled as its author asked for, but its backend hands out graphs that count how often they
run: so a call that ran eager is told from one that was served by a variant, for every release, mode and
backend alike.
"""

import functools
import inspect
from collections.abc import Callable

import torch

from complab.measure import dynamo, dynamo_programs


class Counting:
    """A backend that compiles as another one does, and counts the graphs it compiled and each run of one."""

    def __init__(self, compiler: Callable, name: str):
        self.compiler_name = name
        self.compiled = 0
        self.runs = 0
        self._compiler = compiler

    def __call__(self, graph, inputs, **options):
        run = self._compiler(graph, inputs, **options)
        self.compiled += 1

        # With the marks that Inductor leaves on it, which say how it wants to be called.
        @functools.wraps(run)
        def counted(*arguments):
            self.runs += 1
            return run(*arguments)

        dynamo_programs.keep_wrapper(counted)
        return counted

    def reset(self) -> None:
        """Passed on by Dynamo's own reset, for backends that remember something."""
        if hasattr(self._compiler, "reset"):
            self._compiler.reset()


def compile_counting(model: Callable, options: dict) -> tuple[Callable, Counting]:
    """The model under `torch.compile` with the author's options, and the counter of its graphs."""
    rest = dict(options)
    backend, mode, inner = (rest.pop(key, default) for key, default in _OF_BACKEND)
    if backend == "inductor":
        # As torch.compile itself does: a mode is part of the backend, and it decides here whether it is
        # known.
        mode = None if inner else mode
        compiler = dynamo_programs.inductor(mode, inner, rest.get("dynamic"))
        counting = Counting(compiler, "inductor")
    else:
        compiler = dynamo_programs.backend_of(backend)
        counting = Counting(compiler, backend if isinstance(backend, str) else _name(backend))
        rest |= {key: value for key, value in (("mode", mode), ("options", inner)) if value}
    return torch.compile(model, backend=counting, **rest), counting


_OF_BACKEND = (("backend", "inductor"), ("mode", None), ("options", None))


def _name(backend: Callable) -> str:
    return getattr(backend, "__name__", type(backend).__name__)


def is_compiled(options: dict) -> bool:
    """Whether these options of `torch.compile` compile anything at all."""
    return not options.get("disable")


def compiled_module(model: Callable) -> torch.nn.Module | None:
    """The module that is compiled: itself, or through its own `compile`, which hands over a bound method."""
    if isinstance(model, torch.nn.Module):
        return model
    owner = getattr(model, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) and model.__name__ == "_call_impl" else None


def code_of(model: Callable):
    """The code of a function, a method, a module's `forward` or an object's `__call__`; None of others."""
    if (module := compiled_module(model)) is not None:
        model = type(module).forward
    elif not (inspect.isfunction(model) or inspect.ismethod(model)):
        model = type(model).__call__
    return getattr(inspect.unwrap(model), "__code__", None)


def refusals(model: Callable, arguments: tuple, named: dict) -> list[tuple[str, str]] | None:
    """For each kept variant of the model that refuses these arguments its number and first failing guard.

    None where the release, or a model without a code object of its own, does not tell.
    """
    code = code_of(model)
    entries = None if code is None else dynamo.cache_entries(code)
    if not entries:
        return None
    try:
        given = _bound(model, arguments, named)
        told = [
            (str(number), entry.guard_manager.check_verbose(given)) for number, entry in enumerate(entries)
        ]
    except (AttributeError, TypeError, KeyError, RuntimeError):
        return None
    return [(number, _first_guard(info)) for number, info in told if not info.result]


def _first_guard(info) -> str:
    parts = list(getattr(info, "verbose_code_parts", ()))
    return str(parts[0]).splitlines()[0] if parts else ""


def _bound(model: Callable, arguments: tuple, named: dict) -> dict:
    """The arguments by the names that the model's own code gives them."""
    function, first = _function_of(model)
    bound = inspect.signature(inspect.unwrap(function)).bind(*first, *arguments, **named)
    bound.apply_defaults()
    return dict(bound.arguments)


def _function_of(model: Callable) -> tuple[Callable, tuple]:
    """The function that Dynamo sees called, and what it is given before the call's own arguments."""
    if (module := compiled_module(model)) is not None:
        return type(module).forward, (module,)
    if inspect.ismethod(model):
        return model.__func__, (model.__self__,)
    return (model, ()) if inspect.isfunction(model) else (type(model).__call__, (model,))


def variants(model: Callable) -> int:
    """How many variants of the model's own code Dynamo keeps; 0 where that is not told."""
    code = code_of(model)
    return 0 if code is None else len(dynamo.cache_entries(code) or [])


def acceptor(model: Callable) -> Callable[[tuple, dict], bool | None]:
    """A function of arguments: whether a kept variant of the model accepts them, None where that is not told.

    Quick enough to be asked in every call: what of the model it needs is looked up once.
    """
    code = code_of(model)
    function, first = _function_of(model)
    odd = (
        code is None
        or code.co_kwonlyargcount
        or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    )
    names = () if odd else code.co_varnames[: code.co_argcount]
    signature = functools.cache(lambda: inspect.signature(inspect.unwrap(function)))

    def accepted(arguments: tuple, named: dict) -> bool | None:
        entries = None if code is None else dynamo.cache_entries(code)
        if not entries:
            return None
        try:
            given = (*first, *arguments)
            if named or len(given) != len(names):
                bound = signature().bind(*given, **named)
                bound.apply_defaults()
                told = dict(bound.arguments)
            else:
                told = dict(zip(names, given, strict=True))
            return any(dynamo.accepts(entry, told) for entry in entries)
        except (AttributeError, TypeError, KeyError, RuntimeError):
            return None

    return accepted
