"""What do torch's own log lines say?

Reads the text that torch's stream handlers print under `TORCH_LOGS=graph_breaks,recompiles` (and the
warning about the recompile limit, which needs no setting) into plain facts. Recorded on 2.6.0 and 2.13.0,
see tests/data/torchlogs; the standard library is enough, so the measured process can use it too.

A line is `V0131 23:59:59.123000 4711 torch/_dynamo/guards.py:2791] [0/1] [__recompiles] text`; a message of
many lines repeats that prefix on each. Text without prefixes is read as well: there the shape of a line
decides whether it still belongs to the message above it.

What the releases print (2.6 | from 2.7 on, where it differs):

    Graph break in user code at F:L / Reason: R         | Graph Break Reason: R, with a heading before R
    Graph break (details suppressed) in user code ...   | Graph break (user stack suppressed due to ...)
    Graph break: skip: from user code at: ...           | ... Failed to handle graph break gracefully ...
    Recompiling function f in F:L / ... / - 0/0: guard  | then `- User stack trace:` and its lines (2.11)
    torch._dynamo hit config.cache_size_limit (8)       | recompile_limit
    last reason: 0/0: the oldest entry's guard          | the newest entry's guard
    L['n'] == 3                                         | n == 3      # source  # place (HINT: ...)

Log text is an exhibit and gives reasons; it is no good as the only source of a count: a break at a line
that was reported before may be logged again or not, and 2.6 does not say that a loop made it skip a frame.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile

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


@dataclass(frozen=True)
class GuardFailure:
    """Why one cached entry refused a call: `entry` is its compile id (`0/0`), `text` the guard as printed."""

    entry: str
    text: str

    @property
    def assumption(self) -> Assumption:
        return classify_guard(self.text)


@dataclass(frozen=True)
class Break:
    """One graph break message.

    `line` is where it starts in the log, `file` and `lineno` are the user's. `source` is the text of that
    source line, empty when the log shows no stack. `reason` is the whole reason, `label` its first telling
    sentence without memory addresses. `repeated`: torch says that it has reported this place before.
    `frame_skipped`: torch says that it gave up the whole frame; False only means that it does not say so
    (2.6 never does for a break in a loop).
    """

    line: int
    compile_id: str
    file: str
    lineno: int
    source: str
    reason: str
    label: str
    repeated: bool = False
    frame_skipped: bool = False


@dataclass(frozen=True)
class Recompile:
    """One recompile: which function, and the first guard that failed in each entry, newest entry first."""

    line: int
    compile_id: str
    function: str
    file: str
    lineno: int
    failures: tuple[GuardFailure, ...]


@dataclass(frozen=True)
class LimitHit:
    """The warning that no more variants are made: `setting` is the name of the limit, `limit` its value.

    `function`, `file`, `lineno` and `last_reason` (`0/0: guard`) are empty or 0 in a log that ends too early.
    """

    line: int
    compile_id: str
    setting: str
    limit: int
    function: str
    last_reason: str
    file: str = ""
    lineno: int = 0


@dataclass(frozen=True)
class Log:
    """All facts of a log, each list in the order of the text."""

    breaks: tuple[Break, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    limits: tuple[LimitHit, ...] = ()

    @property
    def break_sites(self) -> tuple[tuple[str, int], ...]:
        """The (file, lineno) at which the graph broke, each once: the count that releases agree on."""
        return tuple(dict.fromkeys((each.file, each.lineno) for each in self.breaks))


def parse(text: str) -> Log:
    """Every complete break, recompile and limit message in `text`; anything else is passed over.

    A message cut off before its reason (break) or its first guard (recompile) is not counted.
    """
    facts = [fact for message in _messages(text) if (fact := _fact(message))]
    kinds = (Break, Recompile, LimitHit)
    return Log(*(tuple(fact for fact in facts if type(fact) is kind) for kind in kinds))


# From text to messages.


_PREFIX = re.compile(
    r"(?:\[rank\d+\]:)?[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ [^\]]*:\d+\]"
    r"(?: \[(?P<compile_id>[!?\d/_-]+)\])?(?: \[__\w+\])? ?"
)
_BREAK = re.compile(
    r"Graph [Bb]reak(?P<repeated> \([^)]*suppressed[^)]*\))? in user code at (?P<file>.+):(?P<lineno>\d+)$"
)
# Not every "Graph break: ..." is a message of its own: the warning about `Tensor.item()` contains
# "Graph break: from user code at:", and the break itself follows it.
_SKIP = re.compile(r"Graph break: (?:skip:|torch\.compile cannot properly resume)")
_RECOMPILE = re.compile(r"Recompiling function (?P<function>\S+) in (?P<file>.+):(?P<lineno>\d+)$")
_LIMIT = re.compile(r"torch\._dynamo hit config\.(?P<setting>\w+) \((?P<limit>\d+)\)")
_STARTS = (_BREAK, _SKIP, _RECOMPILE, _LIMIT)

# Unindented lines inside a message, for text without prefixes.
_HEADING = re.compile(
    r"(?:Graph Break )?Reason:|User (?:code traceback|stack trace):|Stack variable source attribution:|"
    r"Traceback \(most recent call last\)|The graph break occurred|from user code:|torch\.|"
    r"To (?:log|diagnose) "
)


@dataclass(frozen=True)
class _Line:
    number: int
    stamp: str
    compile_id: str
    text: str


def _lines(text: str) -> Iterator[_Line]:
    for number, raw in enumerate(text.split("\n"), start=1):
        raw = raw.rstrip("\r")
        if prefix := _PREFIX.match(raw):
            yield _Line(number, prefix.group().rstrip(), prefix["compile_id"] or "", raw[prefix.end() :])
        else:
            yield _Line(number, "", "", raw)


def _messages(text: str) -> Iterator[list[_Line]]:
    message: list[_Line] = []
    for line in _lines(text):
        if message and not _continues(message, line):
            yield message
            message = []
        message.append(line)
    yield message


def _continues(message: list[_Line], line: _Line) -> bool:
    if any(start.match(line.text) for start in _STARTS):
        return False
    last = message[-1]
    if line.stamp:
        return line.stamp == last.stamp
    if len(message) > 1 and message[1].stamp:
        # This stream repeats its prefix, so a line without one was printed by something else.
        return False
    return not line.text.strip() or line.text[0].isspace() or not last.text.strip() or _is_heading(line)


def _is_heading(line: _Line) -> bool:
    return _HEADING.match(line.text) is not None


def _fact(message: list[_Line]) -> Break | Recompile | LimitHit | None:
    head, body = message[0], [line.text for line in message[1:]]
    if found := _BREAK.match(head.text):
        return _break(head, found, body)
    if _SKIP.match(head.text):
        return _skip(head, body)
    if found := _RECOMPILE.match(head.text):
        return _recompile(head, found, body)
    if found := _LIMIT.match(head.text):
        return _limit_hit(head, found, body)
    return None


# From a message to a fact.


_REASON = re.compile(r"(?:Graph Break )?Reason: ?(?P<text>.*)")
_EXCEPTION = re.compile(r"torch\._dynamo\.exc\.(?P<text>\w+: .*)")
_STACK = re.compile(r"User code traceback:|Traceback \(most recent call last\)")
_AFTER_REASON = re.compile(r"User code traceback:|Stack variable source attribution:|from user code:")
_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<lineno>\d+), in ')
_ENTRY = re.compile(r"\s*- (?P<entry>(?:!\d+/)?\d+/\d+(?:_\d+)?|None): (?P<text>.*)")
_CONTINUED = "    - "
_FUNCTION = re.compile(r"\s*function: '(?P<function>.*)'(?: \((?P<file>.*):(?P<lineno>\d+)\))?")
_LAST_REASON = re.compile(r"\s*last reason: (?P<text>.*)")
_AFTER_LAST_REASON = re.compile(r"User stack trace:|To log all|To diagnose")


def _break(head: _Line, found: re.Match, body: list[str]) -> Break | None:
    reason = _section(body, _REASON, _AFTER_REASON)
    if not reason:
        return None
    place = (found["file"], int(found["lineno"]))
    stack = _frames(body[_index(body, _STACK) :])
    sources = [source for file, lineno, source in stack if (file, lineno) == place]
    return Break(
        head.number,
        head.compile_id,
        *place,
        source=sources[-1] if sources else "",
        reason=reason,
        label=_label(reason),
        repeated=found["repeated"] is not None,
        frame_skipped=reason.startswith("Failed to handle graph break") or "\ngraph break in loop" in reason,
    )


def _skip(head: _Line, body: list[str]) -> Break | None:
    """The whole frame was given up: the place is the user's innermost frame, the reason the exception."""
    reason = _section(body, _EXCEPTION, _AFTER_REASON)
    if not reason:
        return None
    stack = _frames(body[: _index(body, _STACK)]) or [("", 0, "")]
    return Break(
        head.number, head.compile_id, *stack[-1], reason=reason, label=_label(reason), frame_skipped=True
    )


def _recompile(head: _Line, found: re.Match, body: list[str]) -> Recompile | None:
    failures = tuple(_failures(body))
    if not failures:
        return None
    return Recompile(
        head.number, head.compile_id, found["function"], found["file"], int(found["lineno"]), failures
    )


def _limit_hit(head: _Line, found: re.Match, body: list[str]) -> LimitHit:
    functions = [function for text in body if (function := _FUNCTION.match(text))]
    place = functions[0].groupdict() if functions else {}
    return LimitHit(
        head.number,
        head.compile_id,
        setting=found["setting"],
        limit=int(found["limit"]),
        function=place.get("function") or "",
        last_reason=_section(body, _LAST_REASON, _AFTER_LAST_REASON),
        file=place.get("file") or "",
        lineno=int(place.get("lineno") or 0),
    )


def _failures(body: list[str]) -> Iterator[GuardFailure]:
    """Each `- 0/0: guard` with the lines it goes on over; the stack that newer releases add is left out."""
    starts = [index for index, text in enumerate(body) if _ENTRY.match(text)]
    for start, end in pairwise([*starts, len(body)]):
        entry = _ENTRY.match(body[start])
        rest = takewhile(lambda text: text.startswith(_CONTINUED), body[start + 1 : end])
        rest = (text.removeprefix(_CONTINUED) for text in rest)
        text = takewhile(lambda text: not text.startswith("User stack trace:"), rest)
        yield GuardFailure(entry["entry"], _joined([entry["text"], *text]))


def _section(body: list[str], opening: re.Pattern, closing: re.Pattern) -> str:
    """Text from the line that matches `opening` to the one before `closing`; empty if there is none."""
    start = _index(body, opening)
    if start == len(body):
        return ""
    rest = takewhile(lambda text: not closing.match(text), body[start + 1 :])
    return _joined([opening.match(body[start])["text"], *rest])


def _index(body: list[str], pattern: re.Pattern) -> int:
    """Index of the first line that matches, or the length of `body`."""
    return next((index for index, text in enumerate(body) if pattern.match(text)), len(body))


def _joined(texts: Iterable[str]) -> str:
    return "\n".join(text.rstrip() for text in texts).strip()


def _frames(body: list[str]) -> list[tuple[str, int, str]]:
    """(file, lineno, source text) of each frame of a printed stack, outermost first."""
    frames = []
    for index, text in enumerate(body):
        if found := _FRAME.match(text):
            after = "".join(body[index + 1 : index + 2])
            source = "" if _FRAME.match(after) else after.strip()
            frames.append((found["file"], int(found["lineno"]), source))
    return frames


def _label(reason: str) -> str:
    """First sentence of the reason: newer releases put `Encountered graph break when ...:` above it."""
    first, _, rest = reason.partition("\n")
    if first.endswith(":") and rest.startswith("\n"):
        first = rest.strip().partition("\n")[0]
    return re.sub(r" at 0x[0-9a-f]+", "", first.partition(". ")[0])


# From a guard to the assumption behind it.


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
        return Assumption("input-type", subject, None, expected)
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
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    if names & {"G", "torch", "utils_device"} or "cell_contents" in attributes:
        return "global-state"
    return "module-attribute" if attributes else otherwise
