"""One word names a cause: by what Dynamo could not trace, in the words of either release."""

import pytest

from complab import guards, mechanisms

# What Dynamo of torch 2.13 says of a break: sentence, explanation and context, as far as they decide.
SAID_BY_2_13 = {
    "Tensor.item() in the function": (
        "tensor-to-python",
        "Unsupported Tensor.item() call with capture_scalar_outputs=False\n"
        "  Explanation: Dynamo does not support tracing `Tensor.item()` with "
        "config.capture_scalar_outputs=False.\n"
        "  Hint: Set `torch._dynamo.config.capture_scalar_outputs = True`\n"
        "  Developer debug context: call_method TensorVariable() item () {}",
    ),
    "tolist": (
        "tensor-to-python",
        "Data dependent operator\n  Explanation: Operator `aten._local_scalar_dense.default` has a "
        "non-Tensor "
        "output whose value is dependent on the data of Tensor inputs.\n"
        "  Developer debug context: aten._local_scalar_dense.default",
    ),
    "print of a tensor": (
        "tensor-to-python",
        "Failed to trace builtin operator\n  Explanation: Dynamo does not know how to trace builtin operator "
        "`print` with argument types ['Tensor'] (has_kwargs False)\n"
        "  Developer debug context: builtin print [<class "
        "'torch._dynamo.variables.tensor.TensorVariable'>] False",
    ),
    "str of a tensor": (
        "tensor-to-python",
        "Failed to trace builtin operator\n  Explanation: Dynamo does not know how to trace builtin operator "
        "`str` with argument types ['Tensor'] (has_kwargs False)",
    ),
    "torch.equal in an if": (
        "data-dependent-branch",
        "Data dependent operator\n  Explanation: Operator `aten.equal.default` has a non-Tensor output whose "
        "value is dependent on the data of Tensor inputs.\n  Developer debug context: aten.equal.default",
    ),
    "if on a value": (
        "data-dependent-branch",
        "Data-dependent branching\n  Explanation: Detected data-dependent branching (e.g. `if "
        "my_tensor.sum() > "
        "0:`). Dynamo does not support tracing dynamic control flow.\n  Hint: Use `torch.cond` to "
        "express dynamic "
        "control flow.\n  Developer debug context: attempted to jump with TensorVariable()",
    ),
    "the same in a loop": (
        "data-dependent-branch",
        "Failed to handle graph break gracefully. Skipping the function and falling back to eager. "
        "Graph break "
        "encountered:\n\nData-dependent branching\n  Explanation: Detected data-dependent branching",
    ),
    "sorting tensors": (
        "data-dependent-branch",
        "sort with non-constant keys\n  Explanation: Cannot perform sort with non-constant key. First "
        "non-constant key type: <class 'torch.Tensor'>",
    ),
    "boolean mask": (
        "data-dependent-shape",
        "Dynamic shape operator\n  Explanation: Operator `aten.nonzero.default`'s output shape depends "
        "on input "
        "Tensor data.\n  Hint: Enable tracing of dynamic shape operators with "
        "`torch._dynamo.config.capture_dynamic_output_shape_ops = True`",
    ),
    "one_hot without classes": (
        "data-dependent-shape",
        "Attempted to use `torch.nn.functional.one_hot` with data-dependent output shape\n"
        "  Explanation: Dynamo does not support this.",
    ),
    "logging": (
        "unsupported-call",
        "logging.Logger method not supported for non-export cases\n  Explanation: logging.Logger "
        "methods are not "
        "supported for non-export cases.\n  Hint: Add the logging method to `torch._dynamo.config"
        ".ignore_logging_functions`.\n  Developer debug context: method: <Logger a (WARNING)>.info",
    ),
    "a clock": (
        "unsupported-call",
        "Attempted to call function marked as skipped\n  Explanation: Dynamo does not know how to trace the "
        "builtin `time.perf_counter.` This function is either a Python builtin or a third-party C/C++ "
        "extension.",
    ),
    "print of a text": (
        "unsupported-call",
        "Failed to trace builtin operator\n  Explanation: Dynamo does not know how to trace builtin operator "
        "`print` with argument types ['str'] (has_kwargs False)",
    ),
    "an LSTM": (
        "unsupported-call",
        "Attempted to wrap RNN, GRU, or LSTM\n  Explanation: Dynamo does not support RNN, GRU, or LSTM.",
    ),
    "a disabled helper": (
        "unsupported-call",
        "Skip calling `torch.compiler.disable()`d function\n  Explanation: Skip calling function `<function "
        "helper>` since it was wrapped with `torch.compiler.disable` (reason: None)",
    ),
    "an unknown context manager": (
        "unsupported-construct",
        "Unsupported context manager\n  Explanation: Dynamo does not know how to enter a `lock` context "
        "manager.",
    ),
    "a class in the function": (
        "unsupported-construct",
        "LOAD_BUILD_CLASS bytecode not supported\n  Explanation: Dynamo does not support tracing "
        "classes that are "
        "defined in the compiled region.",
    ),
    "autograd.grad": (
        "nested-autograd",
        "using `torch.autograd.grad` with `torch._dynamo.config.trace_autograd_ops=False`\n"
        "  Explanation: Attempted to call `torch.autograd.grad` with config",
    ),
    "backward": (
        "nested-autograd",
        "Unsupported Tensor.backward() call\n  Explanation: Dynamo currently does not support tracing "
        "`Tensor.backward()` when trace_autograd_ops is off.",
    ),
}
# 2.6 has a short text of its own for each.
SAID_BY_2_6 = {
    "Tensor.item": ("tensor-to-python", "Unsupported: Tensor.item"),
    "print of a tensor": (
        "tensor-to-python",
        "call_function BuiltinVariable(print) [TensorVariable()] {}",
    ),
    "if on a value": ("data-dependent-branch", "generic_jump TensorVariable()"),
    "boolean mask": ("data-dependent-shape", "dynamic shape operator: aten.nonzero.default"),
    "logging": ("unsupported-call", "Logger not supported for non-export cases"),
    "autograd.grad": ("nested-autograd", "call_function args: torch.autograd.grad"),
}


@pytest.mark.parametrize("name", SAID_BY_2_13)
def test_a_break_is_named_by_what_could_not_be_traced(name):
    word, reason = SAID_BY_2_13[name]
    assert mechanisms.of_break(reason) == word


@pytest.mark.parametrize("name", SAID_BY_2_6)
def test_a_break_is_named_in_the_words_of_2_6_too(name):
    word, reason = SAID_BY_2_6[name]
    assert mechanisms.of_break(reason) == word


def test_a_hint_names_nothing():
    reason = "Attempted to call function marked as skipped\n  Hint: Do not use `Tensor.item()` here."
    assert mechanisms.of_break(reason) == "unsupported-call"


def test_an_exception_that_tells_its_cause_needs_no_bisection():
    assert mechanisms.of_error(["ConstraintViolationError: x"], one_graph=False) == "constraint-violated"
    assert mechanisms.of_error(["FailOnRecompileLimitHit: x"], one_graph=True) == "limit-raised"
    assert mechanisms.of_error(["Unsupported: Data-dependent branching"], one_graph=True) == "capture-refused"


def test_a_refusal_is_one_only_where_one_graph_was_asked_for():
    assert mechanisms.of_error(["UserError: Could not guard"], one_graph=False) == ""


def test_an_error_of_the_program_is_no_mechanism():
    assert mechanisms.of_error(["RuntimeError: shape mismatch"], one_graph=True) == ""


def test_the_vocabulary_is_closed_and_each_word_stands_once():
    words = [each.word for each in mechanisms.VOCABULARY]
    assert len(words) == len(set(words))
    assert all(each.meaning and each.example for each in mechanisms.VOCABULARY)


def test_each_kind_of_guard_is_a_mechanism_of_stability():
    stable = {each.word for each in mechanisms.VOCABULARY if each.level == "STABLE"}
    assert set(guards.KINDS) - {"other"} == stable
