"""Which private facts does this torch release give, and what do they say now?

The only module that touches `torch._dynamo`, `torch._inductor`, `torch._functorch` and `torch._logging`
internals, but for `dynamo_programs`, which no experiment uses. `capabilities` says what this release offers;
a fact it does not offer comes back as None, "not reported by this release", never as 0.
"""

import contextlib
import importlib
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch._dynamo as _dynamo
import torch._dynamo.eval_frame as _eval_frame
import torch._logging._internal as _logging_internal
from torch._dynamo import utils as _utils

try:
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list as _cache_entry_list
except ImportError:
    _cache_entry_list = None

# Counted while a backend without a disk cache compiled, see `cacheless`.
_cacheless: Counter = Counter()

METRIC_FIELDS = (
    "compile_id",
    "co_name",
    "entire_frame_compile_time_s",
    "backend_compile_time_s",
    "restart_reasons",
)


@dataclass(frozen=True)
class Frame:
    """A frame Dynamo tried: its code, whether a variant was kept, and why not if torch says so."""

    compile_id: str
    name: str
    file: str
    line: int
    kept: bool
    reason: str


@dataclass(frozen=True)
class Span:
    """A named stretch of compilation, in nanoseconds since the epoch."""

    name: str
    start: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


def capabilities() -> dict[str, bool]:
    """What this release can tell, by name; written into every provenance record."""
    inductor = _inductor_config()
    functorch = _functorch_config()
    return {
        "recompile_limit": hasattr(_dynamo.config, "recompile_limit"),
        "counters": hasattr(_utils, "counters"),
        "cache_entries": _cache_entry_list is not None,
        "compilation_metrics": hasattr(_utils, "get_compilation_metrics"),
        "compile_spans": _span_log() is not None,
        "explain": hasattr(_dynamo, "explain"),
        "mark_dynamic": hasattr(_dynamo, "mark_dynamic"),
        "mark_unbacked": hasattr(_dynamo.decorators, "mark_unbacked"),
        "set_stance": hasattr(torch.compiler, "set_stance"),
        **{f"stance_{name}": offers_stance(name) for name in LATER_STANCES},
        "fx_graph_cache": bool(getattr(inductor, "fx_graph_cache", False)),
        "aot_autograd_cache": bool(getattr(functorch, "enable_autograd_cache", False)),
        "precompiled_headers": bool(getattr(inductor, "cpp_cache_precompile_headers", False)),
        "log_handlers": hasattr(_logging_internal, "handlers"),
    }


# Stances that came after `set_stance` itself.
LATER_STANCES = ("eager_then_compile", "aot_eager_then_compile")


def offers_stance(name: str) -> bool:
    """Whether a call under this stance is served; a release accepts any name until the next call."""
    if not hasattr(torch.compiler, "set_stance") or not hasattr(_eval_frame, "_callback_from_stance"):
        return False
    try:
        with torch.compiler.set_stance(name):
            _eval_frame._callback_from_stance(None)
    except RuntimeError:
        return False
    return True


def _inductor_config():
    import torch._inductor.config as config

    return config


def _functorch_config():
    import torch._functorch.config as config

    return config


def set_recompile_limit(limit: int) -> str:
    """Set how many variants a code object may have; returns the setting's name on this release."""
    name = "recompile_limit" if hasattr(_dynamo.config, "recompile_limit") else "cache_size_limit"
    setattr(_dynamo.config, name, limit)
    return name


def vector_isa() -> tuple[str, str]:
    """The vector instruction set Inductor picks by compiling probes, and the one it would pick unprobed.

    Each with its compiler flags. Leaves the process as `skip_vector_isa_probes` does.
    """
    from torch._inductor import cpu_vec_isa

    probed = _told_isa(cpu_vec_isa.pick_vec_isa())
    # What a probe has answered is cached, in classes as well as instances: only a new copy asks again.
    importlib.reload(cpu_vec_isa)
    skip_vector_isa_probes()
    return probed, _told_isa(cpu_vec_isa.pick_vec_isa())


def _told_isa(isa) -> str:
    return f"{isa} ({isa.build_arch_flags()})" if isa else str(isa)


def skip_vector_isa_probes() -> None:
    """Have Inductor take the processor's word for its instruction sets, without compiling probes for them."""
    from torch._inductor import cpu_vec_isa

    _inductor_config().cpp.vec_isa_ok = True
    # The setting speaks for the base of each set; an extension (VNNI, AMX) is still built and loaded.
    cpu_vec_isa.VecISA.check_build = lambda _isa, _code: True


def never_capture(function) -> None:
    """Have Dynamo leave this function's frames alone, whoever calls it."""
    _dynamo.decorators.skip(function)


def reset() -> None:
    """Forget every compiled variant, counter and compilation metric of this process; disks are untouched."""
    forget_variants()
    _utils.counters.clear()
    _cacheless.clear()
    if hasattr(_utils, "clear_compilation_metrics"):
        _utils.clear_compilation_metrics()


def forget_variants() -> None:
    """Forget every compiled variant; the counters stay, which tell the process's cache lookups."""
    torch.compiler.reset()
    # Not part of the reset: the calls by which the stances that compile later know a second call.
    if hasattr(_eval_frame, "_EXAMPLE_INPUTS"):
        _eval_frame._EXAMPLE_INPUTS = None


@contextlib.contextmanager
def cacheless():
    """Set apart what is captured in the enclosed calls: their backend looks nothing up in a disk cache."""
    graphs, unfinished = graphs_captured(), _unfinished()
    try:
        yield
    finally:
        _cacheless["graphs"] += graphs_captured() - graphs
        _cacheless["unfinished"] += _unfinished() - unfinished


def cacheless_counts() -> dict[str, int]:
    """Graphs captured under `cacheless` so far, and graphs AOTAutograd began there and did not finish."""
    return {name: _cacheless[name] for name in ("graphs", "unfinished")}


def _unfinished() -> int:
    aot = _utils.counters["aot_autograd"]
    return aot.get("total", 0) - aot.get("ok", 0)


def frame_counts() -> tuple[int, int]:
    """Frames Dynamo has tried to compile so far in this process, and those it compiled."""
    frames = _utils.counters["frames"]
    return frames.get("total", 0), frames.get("ok", 0)


def graphs_captured() -> int:
    """Graphs captured so far in this process."""
    return _utils.counters["stats"].get("unique_graphs", 0)


def counters() -> dict[str, dict[str, int]]:
    """Every Dynamo, AOTAutograd and Inductor counter; a multi-line key is cut to its first line."""
    told: dict[str, dict[str, int]] = {}
    for category, values in _utils.counters.items():
        for key, value in values.items():
            label = str(key).splitlines()[0] if str(key) else ""
            told.setdefault(category, {})
            told[category][label] = told[category].get(label, 0) + int(value)
    return told


def cache_counts() -> dict[str, int]:
    """Lookups of each disk cache this release has, so far in this process, by what they came to."""
    told = {
        "fxgraph_hits": _utils.counters["inductor"].get("fxgraph_cache_hit", 0),
        "fxgraph_misses": _utils.counters["inductor"].get("fxgraph_cache_miss", 0),
    }
    if capabilities()["aot_autograd_cache"]:
        told["autograd_hits"] = _utils.counters["aot_autograd"].get("autograd_cache_hit", 0)
        told["autograd_misses"] = _utils.counters["aot_autograd"].get("autograd_cache_miss", 0)
    return told


def cache_entries(code) -> list | None:
    """The variants Dynamo keeps for a code object, None where this release does not tell."""
    return None if _cache_entry_list is None else list(_cache_entry_list(code))


def accepts(entry, arguments: dict) -> bool:
    """Whether a variant's guards accept these arguments, under the grad mode of the caller."""
    return bool(entry.guard_manager.check(arguments))


def mark_dynamic(tensor, dimension: int) -> None:
    """Tell Dynamo that this dimension of the tensor varies."""
    _dynamo.mark_dynamic(tensor, dimension)


def explain(function, *arguments):
    """Dynamo's own explanation of one call; resets Dynamo and really runs the function."""
    return _dynamo.explain(function)(*arguments)


def set_logs(**categories: bool) -> None:
    """Turn torch log categories on; without any, back to torch's default."""
    torch._logging.set_logs(**categories)


def log_streams() -> list[logging.StreamHandler]:
    """The handlers through which torch prints its log now; `set_logs` makes new ones."""
    # By exact type: torch's structured trace handler is a subclass that closes the file it writes to.
    return [handler for handler in _logging_internal.handlers if type(handler) is logging.StreamHandler]


def _span_log():
    """The object that is told of every timed stretch of compilation; None where there is none to ask."""
    log = getattr(_utils, "get_chromium_event_logger", lambda: None)()
    return log if hasattr(log, "log_event_end") else None


@contextlib.contextmanager
def compile_spans() -> Iterator[list[Span] | None]:
    """The stretches of compilation that this thread ends in the context, in the order in which they end.

    None where this release does not tell.
    """
    log = _span_log()
    if log is None:
        yield None
        return
    spans: list[Span] = []
    passed_on, ours = log.log_event_end, threading.get_ident()

    def note(event_name, time_ns, metadata, start_time_ns, *others, **named):
        if threading.get_ident() == ours:
            spans.append(Span(event_name, start_time_ns, time_ns))
        return passed_on(event_name, time_ns, metadata, start_time_ns, *others, **named)

    log.log_event_end = note
    try:
        yield spans
    finally:
        del log.log_event_end


def compilation_metrics() -> list[dict] | None:
    """Stable fields of the kept compilation metrics (the last 64), None where not reported."""
    if not hasattr(_utils, "get_compilation_metrics"):
        return None
    return [
        {
            name: _plain(getattr(metric, name, None))
            for name in METRIC_FIELDS
            if getattr(metric, name, None) is not None
        }
        for metric in _utils.get_compilation_metrics()
    ]


def newest_compilation():
    """A mark for `frames_since`: the last thing Dynamo has told about its compilations, None if nothing."""
    told = _utils.get_compilation_metrics() if hasattr(_utils, "get_compilation_metrics") else ()
    return told[-1] if told else None


def frames_since(mark) -> list[Frame] | None:
    """Each frame Dynamo tried after ``mark``, in order; None where the release does not tell, or not all.

    The releases keep the last 64 compilations only, so a mark that is gone leaves an unknown number.
    """
    if not hasattr(_utils, "get_compilation_metrics"):
        return None
    told = list(_utils.get_compilation_metrics())
    if mark is None:
        # Full to the brim, it may have lost some.
        return (
            None if len(told) >= getattr(_utils, "DEFAULT_COMPILATION_METRICS_LIMIT", 64) else frames_of(told)
        )
    places = [index for index, metric in enumerate(told) if metric is mark]
    return frames_of(told[places[0] + 1 :]) if places else None


def frames_of(told: list) -> list[Frame]:
    """Frames by what was told of each compilation; one refused at the recompile limit is no frame.

    It was not even looked at, so the releases tell nothing of its code; `limit_hits` counts it.
    """
    return [
        Frame(
            str(metric.compile_id),
            metric.co_name,
            metric.co_filename,
            metric.co_firstlineno,
            # Guards are built for what is kept only; 2.6 counts a frame it gave up among the compiled ones.
            kept=metric.guard_count is not None,
            reason=metric.fail_reason or "",
        )
        for metric in told
        if metric.co_name is not None
    ]


def resolved_config() -> dict[str, dict]:
    """Dynamo, Inductor and functorch settings in force, as plain JSON values."""
    modules = {"dynamo": _dynamo.config, "inductor": _inductor_config(), "functorch": _functorch_config()}
    return {name: _config_values(module) for name, module in modules.items()}


def _config_values(module) -> dict:
    copy = module.get_config_copy() if hasattr(module, "get_config_copy") else module.shallow_copy_dict()
    return {key: _plain(value) for key, value in sorted(copy.items()) if not callable(value)}


def _plain(value):
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(str(item) for item in value)
    # Addresses in a repr would make two records of the same state differ.
    return type(value).__name__ if " at 0x" in repr(value) else str(value)
