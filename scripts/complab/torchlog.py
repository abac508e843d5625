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

A cell's log also has lines of the measuring code: which process wrote what follows, and where the calls of
a case begin and end. So whoever holds the log can read again what was counted in it, case by case:

    # process timed
    # case model
    # case model, call 3
    # end of case model, call 3
    # end of case model
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from complab.guards import Assumption, classify_guard


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

    @property
    def told(self) -> str:
        """Every entry with the guard that refused the call, as one text."""
        return " | ".join(f"{each.entry}: {each.text}" for each in self.failures)


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

    @property
    def told(self) -> str:
        """The limit, its value and the last reason, as one text."""
        return f"{self.setting} ({self.limit}): {self.last_reason}"


@dataclass(frozen=True)
class Counted:
    """One row of evidence that the log is the source of."""

    metric: str
    value: int
    unit: str
    detail: str = ""


@dataclass(frozen=True)
class Log:
    """All facts of a log, each list in the order of the text."""

    breaks: tuple[Break, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    limits: tuple[LimitHit, ...] = ()

    @property
    def break_places(self) -> list[Break]:
        """The first break at each place: their number is what releases agree on."""
        return first_at_each_place(self.breaks)

    def of_case(self) -> list[Counted]:
        """What is recorded of the log of all calls of a case."""
        return [
            Counted("log_breaks", len(self.break_places), "breaks", told_places(self.breaks)),
            Counted("log_break_messages", len(self.breaks), "messages"),
            Counted("log_recompiles", len(self.recompiles), "recompiles"),
            Counted("limit_hits", len(self.limits), "hits", "; ".join(each.told for each in self.limits)),
        ]

    def of_call(self) -> list[Counted]:
        """What is recorded of the log of one call of a stream: every recompile and every limit hit."""
        return [
            *(Counted("recompiles", 1, "recompiles", each.told) for each in self.recompiles),
            *(Counted("limit_hit", 1, "hits", each.told) for each in self.limits),
        ]


def first_at_each_place(breaks: Iterable[Break]) -> list[Break]:
    """The first of the breaks at each (file, lineno), in the order of the text."""
    places: dict[tuple[str, int], Break] = {}
    for each in breaks:
        places.setdefault((each.file, each.lineno), each)
    return list(places.values())


def told_places(breaks: Iterable[Break]) -> str:
    """Each place of a break with its source line and reason, as one text."""
    places = first_at_each_place(breaks)
    return "; ".join(f"{each.file}:{each.lineno}: {each.source} | {each.label}" for each in places)


@dataclass(frozen=True)
class Section:
    """The log of a case's calls, or of one of them, in one process of a cell; ``line`` is where it begins."""

    process: str
    case: str
    call: int | None
    line: int
    log: Log


def begin(case: str, call: int | None = None) -> str:
    """The line under which the calls of a case, or one call, begin to log."""
    return f"# case {case}{'' if call is None else f', call {call}'}\n"


def end(case: str, call: int | None = None) -> str:
    """The line above which they have ended."""
    return begin(case, call).replace("# ", "# end of ", 1)


def sections(text: str) -> list[Section]:
    """Every section of a cell's log, in order; one that is not closed goes to the end of its process."""
    lines = text.split("\n")
    marks = [(number, mark) for number, line in enumerate(lines) if (mark := _MARK.fullmatch(line))]
    found, process = [], ""
    for index, (number, mark) in enumerate(marks):
        if mark["process"] is not None:
            process = mark["process"]
        elif not mark["end"]:
            closing = (at for at, later in marks[index + 1 :] if _closes(later, mark))
            body = "\n".join(lines[number : next(closing, len(lines))])
            call = None if mark["call"] is None else int(mark["call"])
            found.append(Section(process, mark["case"], call, number + 1, _moved(parse(body), number)))
    return found


def _closes(later: re.Match, mark: re.Match) -> bool:
    if later["process"] is not None:
        return True
    return bool(later["end"]) and (later["case"], later["call"]) == (mark["case"], mark["call"])


def _moved(log: Log, by: int) -> Log:
    """The log with the line numbers of the text it is a part of."""
    return Log(*(tuple(replace(each, line=each.line + by) for each in told) for told in vars(log).values()))


_MARK = re.compile(
    r"# (?:process (?P<process>.+)|(?P<end>end of )?case (?P<case>.+?)(?:, call (?P<call>\d+))?)"
)


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
    if any(start.match(line.text) for start in _STARTS) or _MARK.fullmatch(line.text):
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
