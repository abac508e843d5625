"""Which measured numbers does a text state, and which of them are bound to a source?

Reads Markdown and LaTeX just far enough for that. What is no measured number by its kind is blanked first, by
the stated rules, in a copy of the same length, so that every place in it is one of the text.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal

MARKDOWN, LATEX = "markdown", "latex"
NONE = "none"
BLANK = "\0"

# What a number may be counted in: dimension and size. Without a unit a number is in its source's own.
UNITS = {
    "ns": ("time", Decimal("1e-9")),
    "us": ("time", Decimal("1e-6")),
    "ms": ("time", Decimal("1e-3")),
    "s": ("time", Decimal(1)),
    "min": ("time", Decimal(60)),
    "h": ("time", Decimal(3600)),
    "%": ("ratio", Decimal("0.01")),
    "x": ("ratio", Decimal(1)),
    "bytes": ("bytes", Decimal(1)),
    "kB": ("bytes", Decimal(10) ** 3),
    "MB": ("bytes", Decimal(10) ** 6),
    "GB": ("bytes", Decimal(10) ** 9),
    "KiB": ("bytes", Decimal(2) ** 10),
    "MiB": ("bytes", Decimal(2) ** 20),
    "GiB": ("bytes", Decimal(2) ** 30),
}
_WORDS = {
    "ns": "ns|nanoseconds?",
    "us": "us|µs|μs|microseconds?",
    "ms": "ms|msec|milliseconds?",
    "min": "min|minutes?",
    "s": "s|secs?|seconds?",
    "h": "h|hours?",
    "%": "%|percent|per cent",
    "x": "×|x|X|times|fold",
    "bytes": "bytes?|B",
    "kB": "kB|KB",
    "MB": "MB",
    "GB": "GB",
    "KiB": "KiB",
    "MiB": "MiB",
    "GiB": "GiB",
}


@dataclass(frozen=True)
class Written:
    """A number as it stands in a text: its digits' worth, the worth of its last digit, its unit.

    ``loose`` ones say that they are about right: their last zeros before the point are places left open.
    """

    number: Decimal
    last: Decimal
    unit: str = ""
    loose: bool = False


@dataclass(frozen=True)
class Statement:
    """A number of the text with what belongs to it: the interval in brackets behind it, its "(n = 5)".

    ``head`` is None for an interval that stands alone.
    """

    start: int
    end: int
    text: str
    head: Written | None
    low: Written | None = None
    high: Written | None = None
    n: int | None = None


@dataclass(frozen=True)
class Note:
    """An annotation: the names it binds numbers to, in order, and whether the author vouches for its line."""

    start: int
    end: int
    names: tuple[str, ...]
    vouches: bool


@dataclass(frozen=True)
class Macro:
    r"""A `\complab[FIELD]{NAME}`, which prints a number of the run."""

    start: int
    end: int
    text: str
    field: str
    name: str


@dataclass
class Prose:
    """A text as read: what it states, the annotations, the macros."""

    kind: str
    text: str
    statements: list[Statement] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    macros: list[Macro] = field(default_factory=list)

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of a position, both from 1."""
        return self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)


def read(text: str, kind: str) -> Prose:
    """Read a text of a kind, MARKDOWN or LATEX."""
    prose = Prose(kind, text)
    left = _blanked(text, _CODE[kind])
    if kind == LATEX:
        left = _without_preamble(left)
    prose.notes = list(_notes(left, kind))
    left = _blanked(left, _COMMENTS[kind])
    prose.macros = [
        Macro(found.start(), found.end(), found[0], found["field"] or "number", found["name"].strip())
        for found in _MACRO.finditer(left)
    ]
    left = _blanked(left, [_MACRO, *_MARKUP[kind]])
    left = _plain(left, kind)
    left = _blanked(left, _NO_NUMBERS)
    # An annotated number is one, however much it looks like a year.
    annotated = {note.start for note in prose.notes}
    left = _YEAR.sub(lambda found: found[0] if _next(text, found.end()) in annotated else _blank(found), left)
    prose.statements = _statements(left, text)
    return prose


def _next(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return at


def _blank(found: re.Match) -> str:
    return re.sub(r"[^\n]", BLANK, found[0])


def _blanked(text: str, patterns: list[re.Pattern]) -> str:
    for pattern in patterns:
        text = pattern.sub(_keeping_group, text)
    return text


def _keeping_group(found: re.Match) -> str:
    """The match blanked, but for its group ``keep``."""
    if "keep" not in found.re.groupindex or found["keep"] is None:
        return _blank(found)
    before, after = found.start("keep") - found.start(), found.end("keep") - found.start()
    blank = _blank(found)
    return blank[:before] + found["keep"] + blank[after:]


# What is blanked before anything else is read: nothing in it counts, annotations neither.

_VERSIONED = (
    r"(?:py)?torch|python|cpython|cuda|cudnn|triton|numpy|scipy|pandas|matplotlib|gcc|g\+\+|clang|llvm|glibc"
    r"|debian|ubuntu|linux|kernel|driver|snakemake|inductor|jinja2?|ro-crate|versions?|releases?"
)
_CODE = {
    MARKDOWN: [
        # The name before a version may be set as code.
        re.compile(rf"(?<!`)`(?P<keep>(?i:{_VERSIONED}))`(?!`)"),
        re.compile(r"\A---\n.*?\n---[ \t]*$", re.MULTILINE | re.DOTALL),
        re.compile(
            r"^(?P<indent>[ \t>]*(?:[-*+][ \t]+)?)(?P<fence>`{3,}|~{3,}).*?"
            r"(?:^[ \t>]*(?P=fence)[`~]*[ \t]*$|\Z)",
            re.MULTILINE | re.DOTALL,
        ),
        re.compile(r"(?<!`)(?P<tick>`+)(?!`)(?:.(?!\n[ \t]*\n))*?[^`](?P=tick)(?!`)", re.DOTALL),
    ],
    LATEX: [
        re.compile(rf"\\(?:texttt|code)\{{(?P<keep>(?i:{_VERSIONED}))\}}"),
        re.compile(
            r"\\begin\{(?P<name>verbatim|Verbatim|lstlisting|minted|comment|filecontents|tikzpicture|alltt)"
            r"(?P<star>\*?)\}.*?(?:\\end\{(?P=name)(?P=star)\}|\Z)",
            re.DOTALL,
        ),
        re.compile(r"\\(?:verb|lstinline)\*?(?:\[[^\]]*\])?(?P<quote>[^\sA-Za-z{*])[^\n]*?(?P=quote)"),
        re.compile(
            r"\\(?:texttt|lstinline|mintinline|code|path|file|detokenize)"
            r"(?:\[[^\]]*\]|\{[a-z]+\}(?=\{))?\{(?:[^{}]|\{[^{}]*\})*\}"
        ),
    ],
}


def _without_preamble(text: str) -> str:
    found = re.search(r"(?<!%)\\begin\{document\}", text)
    return re.sub(r"[^\n]", BLANK, text[: found.end()]) + text[found.end() :] if found else text


_NOTE = {
    MARKDOWN: re.compile(r"<!--\s*complab:(?P<told>.*?)-->", re.DOTALL),
    LATEX: re.compile(r"(?<!\\)%[ \t]*complab:(?P<told>[^\n]*)"),
}
_COMMENTS = {
    MARKDOWN: [re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)],
    LATEX: [re.compile(r"(?<!\\)%[^\n]*")],
}
_MACRO = re.compile(r"\\complab(?:\[(?P<field>[^\]]*)\])?\{(?P<name>[^{}]*)\}")


def _notes(text: str, kind: str) -> Iterator[Note]:
    for found in _NOTE[kind].finditer(text):
        told = re.findall(r"[^\s,]+", found["told"])
        yield Note(found.start(), found.end(), tuple(word for word in told if word != NONE), NONE in told)


# Markup whose digits are none of the text's.

_REFERRING = (
    r"ref|eqref|pageref|autoref|nameref|cref|Cref|vref|label|[A-Za-z]*cite[A-Za-z]*|nocite|bibitem|url|includegraphics|"
    r"input|include|bibliography|bibliographystyle|usepackage|documentclass|setcounter|addtocounter|vspace|"
    r"hspace|setlength|addtolength|rule|definecolor|cmidrule|cline|hypersetup|pagestyle|geometry|parbox|raisebox|scalebox|"
    r"resizebox|multicolumn|multirow"
)
_MARKUP = {
    MARKDOWN: [
        re.compile(r"\$\$.*?\$\$", re.DOTALL),
        re.compile(r"^[ \t]*\[[^\]\n]+\]:[^\n]*$", re.MULTILINE),
        re.compile(r"(?<=\])\((?:[^()\n]|\([^()\n]*\))*\)"),
        re.compile(r"(?<=\])\[[^\]\n]*\]"),
        re.compile(r"\[\^[^\]\n]*\]:?"),
        re.compile(r"\[[^\]\n]*@[^\]\n]*\]"),
        re.compile(r"</?[A-Za-z][^<>\n]*>|<[a-z]+:[^<>\s]*>"),
        re.compile(r"&#?\w+;"),
        re.compile(r"\{[#.][^}\n]*\}"),
        re.compile(r"^(?P<hash>[ \t]*#{1,6}[ \t]+)\d+(?:\.\d+)*[.)]?(?=[ \t])", re.MULTILINE),
        re.compile(r"^[ \t>]*\d{1,9}[.)](?=[ \t])", re.MULTILINE),
    ],
    LATEX: [
        re.compile(r"\\\[.*?\\\]|\$\$.*?\$\$", re.DOTALL),
        re.compile(
            r"\\begin\{(?P<name>equation|align|gather|multline|eqnarray|displaymath|flalign|alignat)(?P<star>\*?)\}"
            r".*?\\end\{(?P=name)(?P=star)\}",
            re.DOTALL,
        ),
        re.compile(rf"\\(?:{_REFERRING})\*?(?:\[[^\]]*\])*(?:\([^)]*\))?(?:\{{[^{{}}]*\}})*"),
        re.compile(r"\\href(?:\[[^\]]*\])?\{[^{}]*\}"),
        re.compile(r"\\(?:begin|end)\{[^{}]*\}(?:\[[^\]]*\])?(?:\{[^{}\n]*\})*"),
        re.compile(r"\\\\\*?(?:\[[^\]]*\])?"),
        re.compile(r"\\item(?:\[[^\]]*\])?"),
        re.compile(
            r"-?\d*\.?\d+[ \t]*(?:(?:pt|em|ex|cm|mm|in|bp|sp|pc)\b"
            r"|\\(?:text|line|column|paper)(?:width|height)|\\baselineskip)"
        ),
    ],
}

# Notations that say the same in other characters, each as long as what it stands for.
_SIUNITX = {
    r"\milli\second": "ms",
    r"\micro\second": "us",
    r"\nano\second": "ns",
    r"\second": "s",
    r"\minute": "min",
    r"\hour": "h",
    r"\percent": "%",
    r"\byte": "bytes",
    r"\mega\byte": "MB",
    r"\giga\byte": "GB",
    r"\ms": "ms",
    r"\us": "us",
    r"\s": "s",
}


def _as_long(found: re.Match, told: str) -> str:
    return told.rjust(len(found[0]))


def _siunitx(found: re.Match) -> str:
    """A quantity of the package siunitx, its number where it was."""
    unit = (found["unit"] or "").strip()
    before = " " * (found.start("number") - found.start())
    told = f"{before}{found['number']} {_SIUNITX.get(unit, unit)}"
    return told[: len(found[0])].ljust(len(found[0]))


def _math(found: re.Match) -> str:
    """Mathematics inside a line: indices and exponents are no numbers, but for powers of ten."""
    told = re.sub(r"(?:_|(?<!10)\^)(?:\{[^{}]*\}|\\?\w)", _blank, found[0])
    return told.replace("$", " ").replace(r"\(", "  ").replace(r"\)", "  ")


_INLINE_MATH = re.compile(r"(?<!\\)\$[^$\n]+(?:\n[^$\n]+)?\$|\\\((?:[^\n]|\n(?!\n))*?\\\)")
_TEX = [
    (_INLINE_MATH, _math),
    (re.compile(r"\\(?:SI|qty)(?:\[[^\]]*\])?\{(?P<number>[^{}]*)\}\{(?P<unit>[^{}]*)\}"), _siunitx),
    (re.compile(r"\\num(?:\[[^\]]*\])?\{(?P<number>[^{}]*)\}(?P<unit>)"), _siunitx),
    (
        re.compile(r"\\(?:text|mathrm|textrm|mathbf|textbf|emph|textit|operatorname)\{"),
        lambda f: _as_long(f, ""),
    ),
    (re.compile(r"\\times(?![A-Za-z])"), lambda found: _as_long(found, "×")),
    (re.compile(r"\\cdot(?![A-Za-z])"), lambda found: _as_long(found, "·")),
    (re.compile(r"\\(?:approx|sim|simeq)(?![A-Za-z])"), lambda found: _as_long(found, "≈")),
    (re.compile(r"\\%"), lambda found: " %"),
    (re.compile(r"\\,"), lambda found: "\u2009\u2009"),
    (re.compile(r"\\[;:! ]|~"), lambda found: " " * len(found[0])),
    (re.compile(r"(?<!-)---?(?!-)"), lambda found: _as_long(found, "—" if len(found[0]) == 3 else "–")),
    (re.compile(r"\\[A-Za-z]+"), lambda found: _as_long(found, "")),
]
_MD = [
    (_INLINE_MATH, lambda found: _plain(_math(found), LATEX)),
    (re.compile(r"[*_]{1,3}(?=[\d.+-]*\d)|(?<=[\d%])[*_]{1,3}"), lambda found: " " * len(found[0])),
    (re.compile(r"(?<=\d)--(?=\d)"), lambda found: " –"),
]


_SAME: dict[str, list[tuple[re.Pattern, Callable[[re.Match], str]]]] = {LATEX: _TEX, MARKDOWN: _MD}


def _plain(text: str, kind: str) -> str:
    for pattern, told in _SAME[kind]:
        text = pattern.sub(told, text)
    return text


# What is no measured number by its kind.

_AND = r"(?:\s*(?:,|;|/|–|-|and|or|to|through|&)\s*)"
_PLAIN = r"\d+(?:\.\d+)*[a-z]?(?![\d.]*\d)"
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_WITH_UNIT = rf"(?!\d|[\s\u2009-]*(?:{'|'.join(_WORDS.values())})(?!\w))"
_PRODUCTS = r"RTX|GTX|GeForce|Tesla|Quadro|Xeon|Ryzen|EPYC|Core|Apple|Instinct"
_REFERENCES = (
    r"figures?|figs?\.?|tables?|tabs?\.|sections?|secs?\.|§+|chapters?|chaps?\.|ch\.|equations?|eqs?\.?"
    r"|appendix|appendices|listings?|algorithms?|pages?|pp?\.|lines?|footnotes?|theorems?|lemmas?|exercises?"
    r"|issues?|volumes?|vol\.|no\.|PR"
)
_NO_NUMBERS = [
    re.compile(r"(?:https?|ftp|file)://[^\s<>)\]}]+|\bwww\.[^\s<>)\]}]+|\bdoi:\S+|\b10\.\d{4,}/\S+"),
    # A path; an identifier with digits in it.
    re.compile(
        r"(?<![^\s(\[{\"'])(?=[^\s\d])(?!(?:n|u|µ|m)?s/)[\w.~$-]*[A-Za-z][\w.~-]*/(?=[^\s]*\d)[\w./~-]+"
    ),
    re.compile(r"(?<![\w.])[^\W\d]+\d\w*(?:[-./]\w+)*"),
    re.compile(r"(?<![\w.])[^\W\d]+-\d+(?:\.\d+)*(?:[-+]\w+)*"),
    re.compile(
        r"\b\d{4}-\d\d(?:-\d\d)?(?:T[\d:.Z+-]+)?\b|\b\d\d?/\d\d?/\d{2,4}\b|\b\d{1,2}:\d\d(?::\d\d)?\b(?!:)"
    ),
    re.compile(
        rf"\b(?:\d{{1,2}}(?:st|nd|rd|th)?\s+)?{_MONTH}\s+(?:\d{{1,2}}(?:st|nd|rd|th)?,?\s+)?\d{{4}}\b"
    ),
    re.compile(rf"\b\d{{1,2}}(?:st|nd|rd|th)?\s+{_MONTH}(?!\w)|\b{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?(?!\w)"),
    re.compile(r"(?<![\w.])v?\d+(?:\.\d+){2,}(?:[-+.]?\w+)*|(?<![\w.])\d+\.\d+(?:\.\d+)*\+\w+"),
    re.compile(
        rf"(?<!\w)(?i:{_VERSIONED})(?:[\s{BLANK}]|==|>=|<=|~=|=|:|-|\()*{_PLAIN}{_WITH_UNIT}"
        rf"(?:{_AND}\d+\.\d+(?:\.\d+)*{_WITH_UNIT})*"
    ),
    re.compile(rf"(?<!\w)(?:{_PRODUCTS})(?:\s+[A-Z]\w*)*\s+\d{{2,5}}\b{_WITH_UNIT}"),
    re.compile(
        rf"(?<!\w)(?i:{_REFERENCES})\s*[(~]?{_PLAIN}\)?{_WITH_UNIT}(?:{_AND}\(?{_PLAIN}\)?{_WITH_UNIT})*"
    ),
    # Citations by number; an interval has a number before it or a point in it.
    re.compile(r"(?<![\d%s×x])(?<![\d%s×x] )\[\d{1,3}(?:\s*[,–-]\s*\d{1,3})*\](?!\()"),
    re.compile(r"(?<![\w.])\d+(?:st|nd|rd|th|-bit)(?!\w)|(?<![\w.])(?:1[5-9]|20)\d0s(?!\w)"),
    # Sizes, as of a tensor.
    re.compile(r"(?<![\w.])\d+(?:\s*[x×]\s*\d+)+(?![\w.^⁻⁰¹²³⁴⁵⁶⁷⁸⁹])"),
]
_YEAR = re.compile(
    r"(?<=\()(?:19|20)\d\d(?=[,;)])"
    r"|(?<![\w.,-])(?:(?i:in|since|until|till|before|after|by|of|from|early|late|mid|year)|©|\(c\))\s+"
    r"(?:19|20)\d\d(?![\w.]*\d)"
    + _WITH_UNIT
    + r"(?!\s+[a-z]+s\b)"
    + r"|(?<![\w.])(?:19|20)\d\d\s*[–-]\s*(?:19|20)\d\d(?![\w.]*\d)"
    + _WITH_UNIT
)

# The rules in words, for --help.
SKIPPED = (
    "code: fenced blocks, inline code, verbatim environments, \\texttt, \\verb",
    "comments, front matter, a LaTeX preamble, tikz pictures",
    "mathematics set apart (equation, align, \\[ \\], $$); inside a line only indices and exponents",
    "link targets, URLs, paths, HTML tags, identifiers with letters in them (e6, H200, int32, torch-2.13)",
    "numbers of headings and list items, ordinals (9th), lengths on paper (3pt, 0.5\\textwidth)",
    "references (Figure 3, Sections 2.1 and 4, Eq. (5), page 7, line 22), citations ([12], [@key], \\cite)",
    "dates, times of day, years after a word such as in or since or in parentheses, decades, sizes (64 x 64)",
    "versions (torch 2.13, v1.2, 2.13.0+cpu, any number with two points), product numbers (RTX 2060), 64-bit",
)


# Numbers.

_THIN = r"[\u2009\u00a0\u202f]"
_GROUP = rf"(?:,|\{{,\}}|{_THIN}{{1,2}})"
# Digits in groups of three; after a plain space a single one, since more of them are a list.
_GROUPED = rf"\d{{1,3}}(?:{_GROUP}\d{{3}})+(?!\d)|(?<!\d )\d{{1,3}} \d{{3}}(?! ?\d)"
_DIGITS = rf"(?:(?:{_GROUPED}|\d+)(?:\.\d+)?|\.\d+)"
_TEN = r"10(?:\^\{?[-−+]?\d+\}?|[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)"
_POWER = rf"(?:[eE][-−+]?\d+|\s*[×·x]\s*{_TEN})"
_NUMBER = rf"[-−+]?(?:{_TEN}|{_DIGITS}{_POWER}?)"
_ANY_UNIT = "|".join(words if words[0] in "%" else rf"(?:{words})(?!\w)" for words in _WORDS.values())
_UNIT = rf"(?:[\s\u2009\u00a0\u202f]{{0,8}}|-)(?:{_ANY_UNIT})"
_SPACE = r"[\s\u2009\u00a0\u202f]{0,4}"
_BEFORE = r"(?<![\w.^])(?<!\d,)(?<![^\W\d_]-)"
_AFTER = r"(?!\d|\.\d|,\d\d\d(?!\d))(?![^\W\d_]|_\w)"
_INTERVAL = rf"\[{_SPACE}(?P<low>{_NUMBER}){_SPACE},{_SPACE}(?P<high>{_NUMBER})(?P<ends>{_UNIT})?{_SPACE}\]"
_STATEMENT = re.compile(
    rf"{_BEFORE}(?P<head>{_NUMBER})(?:(?P<unit>{_UNIT})|{_AFTER})"
    rf"(?:{_SPACE}{_INTERVAL}(?P<after>{_UNIT})?)?(?:{_SPACE}\(n{_SPACE}={_SPACE}(?P<n>\d+)\))?"
)
_ALONE = re.compile(_INTERVAL)
_LOOSE = re.compile(
    r"(?:≈|~|\b(?i:about|around|roughly|approximately|nearly|almost|some|circa|ca\.))[\s$]*\Z"
)
_TO_LAST = re.compile(r"\s*(?:–|-|(?:to|and|or|,\s*and|,\s*or)\b)\s*")
_TO_NEXT = re.compile(r"\s*,\s*")
_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_RAISED = re.compile(r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")


def _statements(left: str, text: str) -> list[Statement]:
    """The numbers of a blanked text, in order."""
    found: list[Statement] = []
    numbers, intervals = _STATEMENT.search(left), _ALONE.search(left)
    while numbers or intervals:
        alone = numbers is None or (intervals is not None and intervals.start() < numbers.start())
        match = intervals if alone else numbers
        found.append(_stated(match, alone, left, text))
        numbers = _STATEMENT.search(left, match.end()) if numbers else None
        if intervals and intervals.start() < match.end():
            intervals = _ALONE.search(left, match.end())
    return _with_shared_units(found, left)


def _stated(match: re.Match, alone: bool, left: str, text: str) -> Statement:
    told = dict.fromkeys(("unit", "after", "head", "n"), "") | match.groupdict()
    # An interval is in the unit of its number where it names none.
    unit = _unit_of(told["unit"]) or _unit_of(told["after"])
    head = low = high = None
    if not alone:
        loose = bool(_LOOSE.search(left, max(0, match.start() - 20), match.start()))
        head = written(told["head"], unit, loose)
    if told["low"]:
        unit = _unit_of(told["ends"]) or unit
        low, high = written(told["low"], unit), written(told["high"], unit)
    n = int(told["n"]) if told["n"] else None
    return Statement(match.start(), match.end(), _as_written(match, told, text), head, low, high, n)


def _as_written(match: re.Match, told: dict, text: str) -> str:
    """The number for a message: as it stands in the text, without the markup around its parts."""

    def part(name: str) -> str:
        return text[match.start(name) : match.end(name)] if told[name] else ""

    interval = f"[{part('low')}, {part('high')}]" if told["low"] else ""
    unit = _unit_of(told["unit"]) or _unit_of(told["after"]) or _unit_of(told["ends"])
    count = f"(n = {told['n']})" if told["n"] else ""
    return " ".join(filter(None, (part("head"), unit, interval, count)))


def _with_shared_units(found: list[Statement], left: str) -> list[Statement]:
    """In "1.3 to 1.8 ms" and "1.3, 1.4 and 1.8 ms" the last unit is that of all."""
    told = list(found)
    for at in range(len(found) - 2, -1, -1):
        this, after, next_as_read = told[at].head, told[at + 1].head, found[at + 1].head
        if this is None or this.unit or told[at].low or after is None or not after.unit:
            continue
        # A comma alone joins only what "and" or "to" ends.
        joints = _TO_LAST if next_as_read.unit else _TO_NEXT
        if joints.fullmatch(left[found[at].end : found[at + 1].start]):
            told[at] = replace(told[at], head=replace(this, unit=after.unit))
    return told


def _unit_of(words: str | None) -> str:
    told = (words or "").strip("- \t\n\u2009\u00a0\u202f")
    return next((unit for unit, pattern in _WORDS.items() if re.fullmatch(pattern, told)), "")


def written(text: str, unit: str = "", loose: bool = False) -> Written:
    """A number as written: 1,322 or 1{,}322, 1.19e-06 or 1.19 × 10⁻⁶, 10⁻⁶."""
    text = _RAISED.sub(lambda found: "^" + found[0].translate(_SUPERSCRIPT), text).replace("−", "-")
    text = re.sub(r"10\^\{?([-+]?\d+)\}?", r"1e\1", text) if "^" in text else text
    mantissa, _, power = re.sub(r"\s*[×·x]\s*1e", "e", text).lower().partition("e")
    digits = re.sub(rf"{_GROUP}|\s", "", mantissa)
    places = len(digits.partition(".")[2])
    if loose and not places and (zeros := len(digits) - len(digits.rstrip("0"))) < len(digits.lstrip("-+")):
        places = -zeros
    exponent = int(power or 0)
    return Written(Decimal(digits).scaleb(exponent), Decimal(1).scaleb(exponent - places), unit, loose)
