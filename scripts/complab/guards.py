"""Which assumption does a guard's text state?

From the text of one failed guard, as torch prints it in a recompile message, to its kind, the value it is
about and what was expected of it, in the same words for every release. The standard library is enough.
"""

import ast
import re
from dataclasses import dataclass

KINDS = (
    "shape",
    "dtype",
    "device",
    "stride",
    "requires-grad",
    "grad-mode",
    "python-value",
    "module-attribute",
    "global-state",
    "container-length",
    "input-type",
    "object-identity",
    "other",
)


@dataclass(frozen=True)
class Assumption:
    """What a guard took for granted.

    `kind` is one of KINDS; `subject` is the value's name as the program would write it (`idx`, `self.scale`,
    `G['FLAG']`), empty if the text names none; `axis` is the tensor dimension; `expected` and `actual` are
    text, None where torch does not print them.
    """

    kind: str
    subject: str
    axis: int | None = None
    expected: str | None = None
    actual: str | None = None

    def describe(self) -> str:
        """One line for a person: `idx: size mismatch at index 1 (expected 60, actual 63)`."""
        what = {"other": "assumption"}.get(self.kind, self.kind.replace("-", " "))
        if self.kind == "shape":
            what = "rank" if self.axis is None else "size"
        change = "mismatch" if self.kind in _TENSOR_KINDS else "changed"
        place = "" if self.axis is None else f" at index {self.axis}"
        known = [("expected", self.expected), ("actual", self.actual)]
        values = ", ".join(f"{word} {value}" for word, value in known if value is not None)
        name = f"{self.subject}: " if self.subject else ""
        return f"{name}{what} {change}{place}" + (f" ({values})" if values else "")


_TENSOR_KINDS = ("shape", "dtype", "device", "stride", "requires-grad")
_LOCAL = re.compile(r"(?<!\w)L\[\s*['\"](.*?)['\"]\s*\]")
# Up to the first # that is not inside a string.
_CODE = re.compile(r"""((?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^'"#])*)#""")
_TYPE = re.compile(r"(?<=\)), type=(?:<class '(?P<name>.*?)'>|.*)$")

_TENSOR = re.compile(
    r"tensor '(?P<subject>.*?)' "
    r"(?P<what>dispatch key set|dtype|Tensor device index|requires_grad|rank|size|stride) mismatch"
    r"(?: at index (?P<axis>\d+))?\."
    r" [Ee]xpected (?:device index to be |requires_grad=)?(?P<expected>.+?)"
    r"(?:, actual (?P<actual>.+?))?(?:\. Guard failed on a parameter.*)?$"
)
_TENSOR_WORDS = {
    "dtype": "dtype",
    "Tensor device index": "device",
    "requires_grad": "requires-grad",
    "rank": "shape",
    "size": "shape",
    "stride": "stride",
}
_NOT_A_TENSOR = re.compile(
    r"expected type of '(?P<subject>.*?)' to be a tensor type, .*?(?:<class '(?P<actual>.*)'>)?$"
)
_GLOBAL_STATE = re.compile(r"GLOBAL_STATE changed: (?P<names>.*)")
_DUPLICATES = re.compile(r"Duplicate tensors found: \[\"(?P<subject>.*?)\"(?:, \"(?P<other>.*?)\")?")
_DEALLOCATED = re.compile(r"Cache line invalidated because (?P<subject>.*) got deallocated")

_DEVICE_KEY = re.compile(
    r"(?:Autograd|Sparse|SparseCsr|Quantized|NestedTensor)?(CPU|CUDA|Meta|XPU|MPS|HPU|XLA)$"
)


def guard_code(text: str) -> str:
    """The guard alone, in one spelling for all releases: `L['n'] == 3   # source` becomes `n == 3`."""
    text = text.partition("\nUser stack trace:")[0].strip()
    text = re.sub(r"^(?:!\d+/)?\d+/\d+(?:_\d+)?: ", "", text)
    if code := _CODE.match(text):
        text = code[1]
    text = re.sub(r" \(HINT: .*\)$", "", text.strip(), flags=re.DOTALL)
    return _LOCAL.sub(r"\1", text).strip()


def classify_guard(text: str) -> Assumption:
    """The assumption behind a guard as printed (with or without its `0/0: `); never raises.

    Two things the text cannot tell. 2.6 prints a guard on True, False or None as one on an object's identity.
    And a variable that the compiled function itself closes over is printed like an argument: python-value.
    """
    code = guard_code(text)
    readers = (_tensor, _not_a_tensor, _global_state, _aliased, _expression)
    try:
        return next(filter(None, (read(code) for read in readers)), Assumption("other", ""))
    except RecursionError:
        return Assumption("other", "")


def _tensor(code: str) -> Assumption | None:
    found = _TENSOR.match(code)
    if not found:
        return None
    what, subject, expected, actual = found["what"], found["subject"], found["expected"], found["actual"]
    if what == "dispatch key set":
        return _dispatch_keys(subject, expected, actual or "")
    if what == "requires_grad":
        expected, actual = ("False", "True") if expected == "0" else ("True", "False")
    axis = int(found["axis"]) if found["axis"] else None
    return Assumption(_TENSOR_WORDS[what], subject, axis, expected, actual)


def _dispatch_keys(subject: str, expected: str, actual: str) -> Assumption:
    """Keys stand for device, autograd, autocast and layout at once: what differs decides."""
    before, after = (set(re.findall(r"\w+", keys)) - {"DispatchKeySet"} for keys in (expected, actual))
    devices = [{found[1] for key in keys if (found := _DEVICE_KEY.match(key))} for keys in (before, after)]
    changed = before ^ after
    if all(devices) and devices[0] != devices[1]:
        return Assumption("device", subject, None, *("/".join(sorted(names)) for names in devices))
    if changed and all(key.startswith("Autocast") for key in changed):
        name = min(changed).removeprefix("Autocast").lower()
        return Assumption("global-state", f"autocast({name})_enabled")
    if changed and all(key.startswith("Autograd") or key == "ADInplaceOrView" for key in changed):
        return Assumption("grad-mode", subject, None, expected, actual)
    return Assumption("other", subject, None, expected, actual or None)


def _not_a_tensor(code: str) -> Assumption | None:
    if found := _NOT_A_TENSOR.match(code):
        return Assumption("input-type", found["subject"], None, "a tensor", found["actual"])
    return None


def _global_state(code: str) -> Assumption | None:
    if found := _GLOBAL_STATE.match(code):
        names = found["names"].split()
        return Assumption("grad-mode" if names == ["grad_mode"] else "global-state", ", ".join(names))
    return None


def _aliased(code: str) -> Assumption | None:
    if found := _DUPLICATES.match(code):
        return Assumption("object-identity", found["subject"], None, "a tensor of its own", found["other"])
    if found := _DEALLOCATED.match(code):
        return Assumption("object-identity", found["subject"], None, "alive", "deallocated")
    return None


# A guard that is a Python expression. Its parts are taken from the syntax tree, never by cutting the text.

_OPERATORS = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TYPE_CHECKS = ("___check_type_id", "___check_fake_script_type")
_ITERATORS = ("___tuple_iterator_len", "___normalize_range_iter", "___normalize_count_iter")
_LENGTHS = ("len", "___key_to_id", *_ITERATORS)
_INTERNAL = ("___check_", "__dtensor_spec_")
_CONVERSIONS = ("int", "float", "str", "bool", "complex", "__math_isnan", "__numpy_isnan")


def _expression(code: str) -> Assumption | None:
    kind_of_object = _TYPE.search(code)
    tree = _tree(_TYPE.sub("", code))
    if tree is None:
        # A value may print as no Python expression: `mode == <Mode.FAST: 1>`.
        left, _, right = code.partition(" == ")
        tree = _tree(left)
        return None if tree is None or not right else _of_term(tree, right, code)
    expected = None
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        tree, expected = tree.operand, "absent"
    if isinstance(tree, ast.BoolOp):
        tree = tree.values[-1]
    if isinstance(tree, ast.Compare):
        return _of_comparison(tree)
    if kind_of_object and isinstance(tree, ast.Call) and ast.unparse(tree.func) in _TYPE_CHECKS:
        expected = kind_of_object["name"]
    return _of_term(tree, expected, ast.unparse(tree))


def _tree(code: str) -> ast.expr | None:
    try:
        return ast.parse(code.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _of_comparison(tree: ast.Compare) -> Assumption:
    left, right, code = tree.left, tree.comparators[0], ast.unparse(tree)
    if len(tree.ops) > 1:
        return _of_term(next(filter(_path, (left, right)), left), code, code)
    if isinstance(tree.ops[0], ast.Is | ast.IsNot):
        return _of_identity(left, right, negated=isinstance(tree.ops[0], ast.IsNot))
    operator = _OPERATORS.get(type(tree.ops[0]), "in")
    if not _path(left):
        left, right, operator = right, left, _MIRRORED.get(operator, operator)
    expected = ast.unparse(right)
    return _of_term(left, expected if operator == "==" else f"{operator} {expected}", code)


def _of_identity(left: ast.expr, right: ast.expr, negated: bool) -> Assumption:
    """`x is None` is about what x may be; `a is b` about two names for one object."""
    expected = f"not {ast.unparse(right)}" if negated else ast.unparse(right)
    kind = _home(left, "input-type") if isinstance(right, ast.Constant) else "object-identity"
    return Assumption(kind, ast.unparse(left), None, expected)


def _of_term(term: ast.expr, expected: str | None, code: str) -> Assumption:
    """`term` is the side that names something; `code` the whole guard, for when the term is computed."""
    if (dimension := _dimension(term)) is not None:
        kind, tensor, axis = dimension
        exact = isinstance(term, ast.Subscript)
        return Assumption(kind, ast.unparse(tensor), axis, expected if exact else code)
    if (keys := _keys_of(term)) is not None:
        return Assumption("container-length", ast.unparse(keys), None, f"key {expected}")
    if isinstance(term, ast.Call):
        return _of_call(term, expected)
    path = _path(term)
    if path is None:
        return Assumption("other", "")
    if expected == "absent":
        return Assumption("container-length", ast.unparse(path), None, "empty")
    expected = expected if path is term else code
    return Assumption(_home(path, "python-value"), ast.unparse(path), None, expected)


def _of_call(call: ast.Call, expected: str | None) -> Assumption:
    function = ast.unparse(call.func)
    if function.startswith(("torch.", "___check_torch", "___check_global")):
        return Assumption("global-state", function.removeprefix("___check_"))
    if not call.args:
        kind = "object-identity" if function == "check_overlapping" else "other"
        path = _path(call)
        return Assumption(kind, ast.unparse(path) if path else "", None, expected)
    subject = ast.unparse(call.args[0])
    if function in _TYPE_CHECKS:
        return Assumption(_home(call.args[0], "input-type"), subject, None, expected)
    if function == "___check_obj_id":
        return Assumption(_home(call.args[0], "object-identity"), subject)
    if function in _LENGTHS:
        return Assumption("container-length", subject, None, expected)
    if function in _CONVERSIONS:
        return Assumption(_home(call.args[0], "python-value"), subject, None, expected)
    if function in ("hasattr", "___dict_contains", "set.__contains__") and len(call.args) == 2:
        return _of_membership(function, call.args, "absent" if expected in ("absent", "False") else "present")
    return Assumption("other", subject, None, expected)


def _of_membership(function: str, arguments: list[ast.expr], expected: str) -> Assumption:
    """An attribute or a key that is there or not: `hasattr(x, 'tag')`, `___dict_contains('a', d)`."""
    holder, item = reversed(arguments) if function == "___dict_contains" else arguments
    if isinstance(holder, ast.Attribute) and holder.attr == "__dict__":
        holder, function = holder.value, "hasattr"
    subject = ast.unparse(holder)
    if function != "hasattr":
        return Assumption("container-length", subject, None, f"{ast.unparse(item)} {expected}")
    name = item.value if isinstance(item, ast.Constant) else ast.unparse(item)
    if str(name).startswith("_dynamo_"):
        # A mark that mark_dynamic and the like leave on a tensor, not an attribute of the program.
        return Assumption("other", subject, None, f"{name} {expected}")
    attribute = ast.Attribute(holder, str(name))
    return Assumption(_home(attribute, "module-attribute"), ast.unparse(attribute), None, expected)


def _dimension(term: ast.expr) -> tuple[str, ast.expr, int] | None:
    """(kind, tensor, axis) of the first `x.size()[1]` or `x.stride()[1]` in the term."""
    for node in _in_order(term):
        match node:
            case ast.Subscript(
                ast.Call(ast.Attribute(tensor, "size" | "stride" as what), []), ast.Constant(int(axis))
            ):
                return "shape" if what == "size" else "stride", tensor, axis
    return None


def _keys_of(term: ast.expr) -> ast.expr | None:
    """The dict of `list(d.keys())[0]` (2.6) or `list(dict.keys(d))[0]`, with or without the index."""
    if isinstance(term, ast.Subscript):
        term = term.value
    match term:
        case ast.Call(ast.Name("list"), [ast.Call(ast.Attribute(ast.Name("dict"), "keys"), [holder])]):
            return holder
        case ast.Call(ast.Name("list"), [ast.Call(ast.Attribute(holder, "keys"), [])]):
            return holder
    return None


def _in_order(term: ast.expr) -> list[ast.expr]:
    """The term's parts from left to right, the longest first of those that start together."""
    nodes = [node for node in ast.walk(term) if isinstance(node, ast.expr)]
    return sorted(nodes, key=lambda node: (node.lineno, node.col_offset, -node.end_col_offset))


def _path(term: ast.expr) -> ast.expr | None:
    """The leftmost `a.b['c']` in the term that is not the name of a called function."""
    called = {id(node.func) for node in ast.walk(term) if isinstance(node, ast.Call)}
    paths = (node for node in _in_order(term) if _is_path(node) and id(node) not in called)
    return next(paths, None)


def _is_path(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and not node.id.startswith(_INTERNAL)


def _home(path: ast.expr, otherwise: str) -> str:
    """The kind that follows from where a value lives: globals and cells, attributes, or a plain argument."""
    nodes = list(ast.walk(path))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    # What Python itself keeps of an object (`f.__code__`) stands for the object.
    attributes = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and not re.match(r"__\w+__$", node.attr)
    }
    if names & {"G", "torch", "utils_device"} or "cell_contents" in attributes:
        return "global-state"
    return "module-attribute" if attributes else otherwise
