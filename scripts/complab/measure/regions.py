"""Which compiled graphs did a call run, and why did each kept variant refuse it?

The program is compiled as its author asked for, but its backend hands out graphs that count how often they
run: so a call that ran eager is told from one that was served by a variant, for every release, mode and
backend alike. Together with `complab.measure.dynamo` the only module that touches private parts of torch.
"""

import collections
import contextlib
import functools
import inspect
import io
import logging
from collections.abc import Callable

import torch
import torch._dynamo
import torch._dynamo.eval_frame as _eval_frame
from torch._dynamo import utils as _utils
from torch._logging import _internal

from complab.measure import dynamo


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
        compiler = torch._TorchCompileInductorWrapper(mode, inner, rest.get("dynamic"))
        counting = Counting(compiler, "inductor")
    else:
        compiler = torch._dynamo.lookup_backend(backend)
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
    if (module := compiled_module(model)) is not None:
        function, given = type(module).forward, (module, *arguments)
    elif inspect.ismethod(model):
        function, given = model.__func__, (model.__self__, *arguments)
    elif hasattr(model, "__code__"):
        function, given = model, arguments
    else:
        function, given = type(model).__call__, (model, *arguments)
    bound = inspect.signature(inspect.unwrap(function)).bind(*given, **named)
    bound.apply_defaults()
    return dict(bound.arguments)


def variants(model: Callable) -> int:
    """How many variants of the model's own code Dynamo keeps; 0 where that is not told."""
    code = code_of(model)
    return 0 if code is None else len(dynamo.cache_entries(code) or [])


LISTENED = ("graph_breaks", "recompiles")


def listen(stream: io.TextIOBase) -> Callable[[], None]:
    """Write what Dynamo logs of breaks, recompiles and limits to a stream as well; returns what ends it.

    What the program's own log settings print stays as it was.
    """
    named = logging.root.manager.loggerDict.values()
    loggers = [each for each in named if getattr(each, "artifact_name", None) in LISTENED]
    # Asked by Dynamo before it makes a message; a level alone is not enough.
    enabled = set(_internal.log_state.artifact_names)
    for name in LISTENED:
        _internal.log_state.enable_artifact(name)
    before = [(each, each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.setLevel(logging.DEBUG)
        # Only what the program itself asked for may reach its own output.
        each.propagate = each.propagate and each.artifact_name in enabled
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_internal.TorchLogsFormatter())
    # The limit is told by a plain warning.
    heard = [*loggers, logging.getLogger("torch._dynamo.convert_frame")]
    for each in heard:
        each.addHandler(handler)

    def stop() -> None:
        for each in heard:
            each.removeHandler(handler)
        for each, level, propagate in before:
            each.setLevel(level)
            each.propagate = propagate
        _internal.log_state.artifact_names = enabled

    return stop


def dispatch_modes() -> list[str]:
    """Names of the active dispatch modes, outermost first: under one, Dynamo skips every frame."""
    depth = torch._C._len_torch_dispatch_stack()
    return [type(torch._C._get_dispatch_stack_at(place)).__name__ for place in range(depth)]


def outside_of_modes():
    """A context without any dispatch mode."""
    from torch.utils import _python_dispatch

    return _python_dispatch._disable_current_modes()


@contextlib.contextmanager
def weak_marks():
    """Have `mark_dynamic` mark an axis in the form that a program's own specialization may overrule."""
    strong = torch._dynamo.mark_dynamic

    def weak(tensor, index, **bounds):
        torch._dynamo.maybe_mark_dynamic(tensor, index)

    torch._dynamo.mark_dynamic = weak
    try:
        yield
    finally:
        torch._dynamo.mark_dynamic = strong


def leave_out(function: Callable) -> None:
    """Have graphs leave out the calls of a logging function, or make them later, where the release can."""
    for name in ("ignore_logging_functions", "reorderable_logging_functions"):
        if hasattr(torch._dynamo.config, name):
            getattr(torch._dynamo.config, name).add(function)
            return


def has_setting(name: str) -> bool:
    """Whether this release has a setting of Dynamo or, as `inductor.name`, of Inductor."""
    config, key = _setting(name)
    return hasattr(config, key)


def set_setting(name: str, value: object) -> object:
    """Change a setting of Dynamo or, as `inductor.name`, of Inductor; returns what it was."""
    config, key = _setting(name)
    before = getattr(config, key)
    setattr(config, key, value)
    return before


def _setting(name: str):
    if name.startswith("inductor."):
        import torch._inductor.config as config

        return config, name.removeprefix("inductor.")
    return torch._dynamo.config, name


def limit_setting() -> str:
    """The name that this release gives the recompile limit."""
    return "recompile_limit" if has_setting("recompile_limit") else "cache_size_limit"


def mark_moving(tensor, axis: int) -> None:
    """Tell Dynamo that this axis varies, in the form that a program's own specialization may overrule."""
    torch._dynamo.maybe_mark_dynamic(tensor, axis)


# What watching a program needs of private torch.


def skip_frames(code) -> None:
    """Have Dynamo leave frames of this code object alone; the frames that they call are still looked at."""
    _eval_frame.skip_code(code)


def watch_compiling(watch: Callable[[Callable, object], object]) -> Callable[[], None]:
    """Have each callable compiled by ``watch(compile, callable)``; returns what ends it.

    Below `torch.compile`, which stays as it is: also a decorator that was imported before, `Module.compile`
    and a copy of a compiled module come by here. A module or a class comes by once more with its function.
    """
    context = _eval_frame.OptimizeContext
    own, compile = vars(context).get("__call__"), context.__call__

    def __call__(self, given):
        # Export goes this way too, and runs nothing later.
        return compile(self, given) if self.export else watch(functools.partial(compile, self), given)

    context.__call__ = __call__

    def stop() -> None:
        if own is None:
            del context.__call__
        else:
            context.__call__ = own

    return stop


def keep_compiled(shell: Callable, compiled: Callable) -> None:
    """Have Dynamo take a shell with the compiled function's attributes for that function itself."""
    # By this newer releases know it: compiled again, it stays one region.
    if hasattr(compiled, "_torchdynamo_wrapper_id"):
        shell._torchdynamo_wrapper_id = id(shell)


def acceptor(model: Callable) -> Callable[[tuple, dict], bool | None]:
    """A function of arguments: whether a kept variant of the model accepts them, None where that is not told.

    Quick enough to be asked in every call: what of the model it needs is looked up once.
    """
    code = code_of(model)
    if (module := compiled_module(model)) is not None:
        function, first = type(module).forward, (module,)
    elif inspect.ismethod(model):
        function, first = model.__func__, (model.__self__,)
    else:
        function, first = (model, ()) if inspect.isfunction(model) else (type(model).__call__, (model,))
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


def tells_compilations() -> bool:
    """Whether this release keeps the record that `note_compilations` listens to."""
    return isinstance(getattr(_utils, "_compilation_metrics", None), collections.deque)


def note_compilations(note: Callable[[object], None]) -> Callable[[], None]:
    """Hand on each compilation that Dynamo tells of, in the thread that compiled; returns what ends it.

    Dynamo itself keeps the last 64 only, those of all threads together; that record stays as it is.
    """
    heard = _Compilations(_utils._compilation_metrics, _utils._compilation_metrics.maxlen)
    heard.note = note
    _utils._compilation_metrics = heard

    def stop() -> None:
        heard.note = None

    return stop


class _Compilations(collections.deque):
    note = None

    def append(self, compilation) -> None:
        super().append(compilation)
        if self.note is not None:
            self.note(compilation)


def frames_of(compilations: list) -> list[dynamo.Frame]:
    """The frames that noted compilations were of."""
    return dynamo._frames(compilations)


class Ear(logging.Filter):
    """Hears what Dynamo logs of breaks, recompiles and limits, and lets pass on what the program asked for.

    Each message is handed on as the function that makes its text. It is a filter, since what reaches the
    handlers is shown, by those of pytest for one.
    """

    def __init__(self, note: Callable[[Callable[[], str]], None]):
        super().__init__()
        self._note, self._formatter = note, _internal.TorchLogsFormatter()
        self._mark = f"complab {id(self)}"
        self._asked: set[str] = set()
        self._levels: dict[logging.Logger, int] = {}

    @property
    def deaf(self) -> bool:
        """Whether `set_logs` or the like has since forgotten that these messages are wanted."""
        return self._mark not in _internal.log_state.artifact_names

    def listen(self) -> None:
        """Have Dynamo make these messages, from now on until `stop`, or until it is deaf."""
        names = _internal.log_state.artifact_names
        self._asked = set(names)
        # Asked by Dynamo before it makes a message; a level alone is not enough.
        names.update(LISTENED, (self._mark,))
        # The limit is told by a plain warning.
        for each in [*_artifact_loggers(), logging.getLogger("torch._dynamo.convert_frame")]:
            self._levels.setdefault(each, each.level)
            if getattr(each, "artifact_name", None):
                each.setLevel(logging.DEBUG)
            if self not in each.filters:
                # In front of one that lets nothing pass.
                each.filters.insert(0, self)

    def filter(self, record: logging.LogRecord) -> bool:
        self._note(lambda: self._formatter.format(record) + "\n")
        artifact = getattr(logging.getLogger(record.name), "artifact_name", None)
        return artifact is None or artifact in self._asked

    def stop(self) -> None:
        """What the program's own settings print stays as it was."""
        for each, level in self._levels.items():
            each.removeFilter(self)
            each.setLevel(level)
        _internal.log_state.artifact_names.difference_update({self._mark, *LISTENED} - self._asked)


def _artifact_loggers() -> list[logging.Logger]:
    every = list(logging.root.manager.loggerDict.values())
    return [each for each in every if getattr(each, "artifact_name", None) in LISTENED]
