"""Which one word names the cause, and what in torch's own words decides it?

The closed vocabulary of a diagnosis: each mechanism belongs to the level that it makes fail. Words for guards
come from `complab.guards`; words for a graph break and for an exception are decided here, from what Dynamo
prints: the operator or the call it could not trace before the sentence around it. The standard library is
enough.
"""

import re
from typing import NamedTuple


class Mechanism(NamedTuple):
    """One cause: the level it fails, what the word means, and an example of it in a program."""

    level: str
    word: str
    meaning: str
    example: str


VOCABULARY = (
    Mechanism(
        "RUNS",
        "eager-error",
        "the program fails without torch.compile, or would if the compiled form did not hide it",
        "a position table shorter than the longest sequence",
    ),
    Mechanism(
        "RUNS",
        "capture-refused",
        "one graph was asked for and Dynamo cannot give it",
        "`fullgraph=True` over an `if tensor.sum() > 0`",
    ),
    Mechanism(
        "RUNS",
        "constraint-violated",
        "a promise about shapes that the program breaks",
        "`mark_dynamic(x, 0)` on a batch that a `reshape(8, ...)` fixes",
    ),
    Mechanism(
        "RUNS",
        "limit-raised",
        "the recompile limit raised instead of falling back to eager",
        "`fullgraph=True` and a new list length in every call",
    ),
    Mechanism(
        "RUNS",
        "dynamo-error",
        "runs without a compiler, fails first with Dynamo alone",
        "tracing itself raises",
    ),
    Mechanism(
        "RUNS",
        "aot-autograd-error",
        "runs with Dynamo alone, fails first with AOTAutograd",
        "a second derivative through the compiled region",
    ),
    Mechanism(
        "RUNS",
        "inductor-error",
        "runs with AOTAutograd, fails first with Inductor",
        "the generated kernel does not compile",
    ),
    Mechanism(
        "CORRECT",
        "wrong-dynamo",
        "other results than eager, first with Dynamo alone",
        "a side effect that is replayed in another order",
    ),
    Mechanism(
        "CORRECT",
        "wrong-aot-autograd",
        "other results than eager, first with AOTAutograd",
        "a mutated view that is not written back",
    ),
    Mechanism(
        "CORRECT",
        "wrong-inductor",
        "other results than eager, first with Inductor",
        "a kernel that reads a buffer after it was overwritten",
    ),
    Mechanism(
        "CORRECT",
        "stale-specialization",
        "state that changed after compilation is not seen by the kept variant",
        "a forward hook registered after the first call",
    ),
    Mechanism(
        "CORRECT",
        "rng",
        "only the random stream differs",
        "dropout, whose mask Inductor draws from a stream of its own",
    ),
    Mechanism(
        "CORRECT",
        "low-precision",
        "as near to float64 as eager is; the tolerance is tighter than the dtype",
        "bfloat16 held to 1e-6",
    ),
    Mechanism(
        "CORRECT",
        "ill-conditioned",
        "eager's own result has no digit to rely on at this input",
        "the difference of two numbers that nearly cancel",
    ),
    Mechanism(
        "CAPTURED",
        "tensor-to-python",
        "a tensor's value becomes a Python value",
        "`.item()`, `.tolist()`, `float(t)`, printing a tensor",
    ),
    Mechanism(
        "CAPTURED",
        "data-dependent-branch",
        "Python control flow on a tensor's value, the exit of a loop included",
        "`if x.sum() > 0:`",
    ),
    Mechanism(
        "CAPTURED",
        "data-dependent-shape",
        "a size that depends on values",
        "`x[x > 0]`, `nonzero`, `one_hot` without a number of classes",
    ),
    Mechanism(
        "CAPTURED",
        "unsupported-call",
        "a call that Dynamo does not trace",
        "logging, a clock, a C extension, an LSTM, a disabled helper",
    ),
    Mechanism(
        "CAPTURED",
        "unsupported-construct",
        "a construct of the language that Dynamo does not trace",
        "an unknown context manager, a class defined in the function",
    ),
    Mechanism(
        "CAPTURED",
        "nested-autograd",
        "autograd inside the compiled function",
        "`torch.autograd.grad` in `forward`",
    ),
    Mechanism(
        "CAPTURED",
        "dispatch-mode-active",
        "called under a dispatch mode, so the code object is skipped",
        "the first call under `FlopCounterMode`",
    ),
    Mechanism(
        "STABLE", "shape", "a tensor's size or rank keeps moving", "a new length under `dynamic=False`"
    ),
    Mechanism("STABLE", "dtype", "a tensor's dtype keeps moving", "float32 and float64 batches, and more"),
    Mechanism("STABLE", "device", "a tensor's device keeps moving", "shards on several devices"),
    Mechanism("STABLE", "stride", "a tensor's layout keeps moving", "slices of ever other strides"),
    Mechanism(
        "STABLE",
        "requires-grad",
        "whether a tensor requires a gradient keeps moving",
        "parameters frozen one by one",
    ),
    Mechanism("STABLE", "grad-mode", "the grad mode keeps moving", "`no_grad` around some calls"),
    Mechanism(
        "STABLE", "python-value", "an int, float, bool or string argument keeps moving", "`f(x, step)`"
    ),
    Mechanism(
        "STABLE",
        "module-attribute",
        "an attribute of a module or of another object keeps moving",
        "`self.step += 1`",
    ),
    Mechanism(
        "STABLE",
        "global-state",
        "a global or closure value, default dtype, thread count or autocast keeps moving",
        "a module-level `level` that a curriculum raises",
    ),
    Mechanism(
        "STABLE",
        "container-length",
        "the length or the keys of a list, tuple or dict keep moving",
        "a list of skip connections of any length",
    ),
    Mechanism("STABLE", "input-type", "a new type in each call", "a class made per request"),
    Mechanism("STABLE", "object-identity", "a new object in each call", "a bound method of a new object"),
    Mechanism(
        "WORTH IT",
        "no-saving",
        "the steady state is not resolved as faster than eager",
        "a policy network of 20 microseconds",
    ),
    Mechanism(
        "WORTH IT",
        "never-amortised",
        "faster per call, but the program does not live long enough to pay for compiling",
        "a script that scores eight inputs",
    ),
)
WORDS = {mechanism.word: mechanism for mechanism in VOCABULARY}

# Operators whose result is a Python bool: what breaks is the decision that is taken with it.
_DECIDING = r"aten\.(equal|allclose|is_nonzero|is_same_size)\b"
# The first that matches names the cause: the operator, then the call, then the construct. Newer releases
# print a sentence, an explanation and a context; 2.6 only a short text of its own (`generic_jump
# TensorVariable()`).
_BREAKS = (
    (
        "nested-autograd",
        r"autograd\.grad\b|autograd_grad\b|Tensor\.backward|backward\(\)|trace_autograd_ops|_ImperativeEngine",
    ),
    ("data-dependent-branch", _DECIDING),
    (
        "tensor-to-python",
        r"_local_scalar_dense|Tensor\.(item|tolist|numpy)\b"
        r"|call_method TensorVariable\(\) (item|tolist|numpy)\b"
        r"|repr\(\) on tensor|must be called .*\.item\(\)",
    ),
    (
        "tensor-to-python",
        r"builtin operator `(print|str|repr|format|float|int|bool|range|complex|math\.\w+)` "
        r"with argument types \[[^\]]*'?Tensor",
    ),
    ("tensor-to-python", r"BuiltinVariable\((print|str|repr|float|int|range)\) \[[^\]]*TensorVariable"),
    (
        "data-dependent-shape",
        r"[Dd]ynamic shape operator|output shape depends on|dynamic slicing|Dynamic slicing|nonzero|one_hot"
        r"|[Dd]ata-dependent output shape",
    ),
    (
        "data-dependent-branch",
        r"[Dd]ata-dependent (branching|jump|assertion|expression)|generic_jump|attempted to jump with"
        r"|Dynamic control flow|sort with non-constant key|Assertion failed on symbolic shapes"
        r"|GuardOnDataDependentSymNode|guard on data-dependent",
    ),
    ("tensor-to-python", r"[Dd]ata.dependent operator"),
    (
        "unsupported-construct",
        r"context manager|ContextWrappingVariable|SETUP_WITH|BEFORE_WITH|class definition|__build_class__"
        r"|BUILD_CLASS|bytecode|[Gg]enerator|[Cc]omprehension|sparse [Tt]ensor|[Oo]bserved exception"
        r"|[Rr]econstruct|exception handler|Side effect|metaclass|descriptor|__getattr|NestedTensor|subclass"
        r"|EXCEPT_HANDLER|UNPACK_|Failed to (raise|unpack|construct)",
    ),
    ("unsupported-call", r"\bcall(ing|ed)?\b|\bCall\b|[Ss]kip function|builtin|[Ll]ogg(er|ing)|as skipped"),
)
# How a compiled call failed, from the names in the chain of its exceptions.
_ERRORS = (
    ("constraint-violated", r"ConstraintViolationError"),
    ("limit-raised", r"FailOnRecompileLimitHit|RecompileLimitExceeded|CacheSizeLimit|RecompileError"),
)
# What Dynamo raises where it cannot capture, and would break the graph if it were allowed to.
_REFUSALS = (
    r"^(Unsupported|UserError|UserErrorType|ObservedException|UncapturedHigherOrderOpError"
    r"|GuardOnDataDependentSymNode|ArgsMismatchError)\b"
)


def of_break(reason: str) -> str:
    """The mechanism of a graph break or a skipped frame, from Dynamo's whole reason; never empty.

    What no pattern tells is a call: that is what Dynamo meets most, and names in most words.
    """
    return told_of_break(reason) or "unsupported-call"


def told_of_break(reason: str) -> str:
    """The mechanism that Dynamo's reason tells of, empty if it is in words that are not known here."""
    # A hint tells what else could be tried, in words that would name another cause.
    told = "\n".join(line for line in reason.splitlines() if not line.strip().startswith("Hint:"))
    return _first(_BREAKS, told)


def of_error(names: list[str], one_graph: bool) -> str:
    """The mechanism of a compiled call's exceptions, outermost first; empty if a bisection has to tell.

    ``one_graph``: whether the program asked for one graph, so that a break became an exception.
    """
    for name in names:
        if word := _first(_ERRORS, name):
            return word
    if one_graph and any(re.search(_REFUSALS, name) for name in names):
        return "capture-refused"
    return ""


def _first(words: tuple[tuple[str, str], ...], text: str) -> str:
    return next((word for word, pattern in words if re.search(pattern, text)), "")
