"""Does a text that says otherwise than the evidence get caught, and does one that is right pass?"""

import json
import random
from decimal import ROUND_DOWN, Decimal

import pytest

from complab import cli
from complab.config import PROJECT
from complab.errors import UsageProblem
from complab.report import manuscript, numbers, prose
from complab.report.manuscript import MISSING, RIGHT, STALE, UNBOUND, UNPROVEN, VOUCHED
from complab.report.number import rounded
from complab.report.numbers import Numbered

REFERENCE = "torch-2.13-cpu"
FOLDER = PROJECT / "figures" / REFERENCE


def numbered(name, text, value, unit="", low=None, high=None, n=5):
    return Numbered(name, "e6", "main", "default", name, "e6.csv", text, value, unit, low, high, n)


KNOWN = {
    number.name: number
    for number in (
        numbered("steady", "1.32", 1.3218, "ms"),
        numbered("sweep", "30.4 [28.9, 32.0]", 30.3871, "s", 28.9412, 31.9954),
        numbered("ratio", "0.92 [0.89, 0.96]", 0.92387, "", 0.8914, 0.9577),
        numbered("slowdown", "1322 [1201, 1455]", 1321.6, "", 1200.9, 1455.3),
        numbered("single", "1.03 (n = 1)", 1.0283, "", n=1),
        numbered("effect", "22.8 %", 0.22797),
        numbered("difference", "1.19e-06", 1.1920928955078125e-06),
        numbered("variants", "14", 14),
        numbered("calls", "2068", 2068),
        numbered("between", "1–2", None, "", 1, 2),
        numbered("failed", "failed", None, "ms"),
        numbered("verdict", "faster", "faster"),
    )
}


def found(text, kind=prose.MARKDOWN):
    return manuscript.compare(prose.read(text, kind), KNOWN)


def kinds(text, kind=prose.MARKDOWN):
    return [finding.kind for finding in found(text, kind)]


def stated(text, kind=prose.MARKDOWN):
    """What is taken for a number, as written."""
    return [statement.text for statement in prose.read(text, kind).statements]


def bound(text, *names):
    return f"It says {text} <!-- complab: {' '.join(names)} --> here."


# Bound numbers


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *(("1.3 ms", "steady"), ("1.32", "steady"), ("1.322 ms", "steady"), ("1 ms", "steady")),
        *(("0.0013 s", "steady"), ("1322 µs", "steady"), ("1.3 milliseconds", "steady")),
        *(("30,387 ms", "sweep"), ("30.4 [28.9, 32.0] s", "sweep"), ("30 s [29, 32]", "sweep")),
        *(("0.5 min", "sweep"), ("30.4 seconds", "sweep")),
        *(("0.92", "ratio"), ("92 %", "ratio"), ("0.92×", "ratio"), ("0.9 times", "ratio")),
        *(("[0.89, 0.96]", "ratio"), ("0.92 [0.89, 0.96] times", "ratio"), ("92%", "ratio")),
        *(("1,322", "slowdown"), ("1 322", "slowdown"), ("1{,}322", "slowdown"), ("1322x", "slowdown")),
        *(("1\N{NARROW NO-BREAK SPACE}322 times", "slowdown"), ("about 1,300", "slowdown")),
        *(("1.03 (n = 1)", "single"), ("22.8 %", "effect"), ("23 %", "effect"), ("0.228", "effect")),
        *(("1.19e-06", "difference"), ("1.2 × 10⁻⁶", "difference"), ("1.192 x 10^-6", "difference")),
        *(("14", "variants"), ("14 variants", "variants"), ("2068", "calls"), ("in 2068", "calls")),
    ],
)
def test_a_number_that_is_its_source_rounded_is_right(text, name):
    assert kinds(bound(text, name)) == [RIGHT]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *(("1.33 ms", "steady"), ("1.4 ms", "steady"), ("1.323", "steady"), ("1.3 s", "steady")),
        *(("2 ms", "steady"), ("1.30 ms", "steady"), ("1.32 %", "steady"), ("1.3 times", "steady")),
        *(("30.4 ms", "sweep"), ("30.4 [28.9, 32.1] s", "sweep"), ("30.4 s [28.8, 32.0]", "sweep")),
        *(("0.93", "ratio"), ("93 %", "ratio"), ("0.92 s", "ratio"), ("[0.89, 0.95]", "ratio")),
        *(("1,323", "slowdown"), ("1,300", "slowdown"), ("about 1,400", "slowdown"), ("132.2", "slowdown")),
        *(("1.03 (n = 2)", "single"), ("22.8", "effect"), ("22.7 %", "effect"), ("1.19e-05", "difference")),
        *(("15", "variants"), ("10", "variants"), ("about 15", "variants"), ("−14", "variants")),
        *(("1.3 ms", "failed"), ("1", "between"), ("1", "verdict"), ("0.92 [0.89, 0.96]", "single")),
    ],
)
def test_a_number_that_says_otherwise_is_stale(text, name):
    assert kinds(bound(text, name)) == [STALE]


def test_what_the_source_says_now_is_told_with_its_place():
    (finding,) = found("\n\nIt takes 1.33 ms <!-- complab: steady -->.")
    assert (finding.line, finding.column, finding.text, finding.code) == (3, 10, "1.33 ms", 5)
    assert finding.now == "1.32 ms, unrounded 1.3218 (e6.csv, row default, column steady)"
    (line,) = manuscript.lines("a.md", [finding])
    assert line.startswith(
        "a.md:3:10: 1.33 ms: stale: steady: the source says otherwise; source now: 1.32 ms"
    )


def test_a_name_that_the_run_does_not_have_is_missing_and_a_near_one_is_told():
    (finding,) = found(bound("1.3 ms", "steadi"))
    assert (finding.kind, finding.code) == (MISSING, 7)
    assert "no number steadi; is it steady?" in finding.told


def test_several_names_bind_as_many_numbers_in_order():
    text = "between 1.3 ms and 30.4 s, 5 times <!-- complab: steady sweep ratio -->"
    assert kinds(text) == [RIGHT, RIGHT, STALE]
    assert kinds("1.3 ms <!-- complab: steady --> and 30.4 s <!-- complab: sweep -->") == [RIGHT, RIGHT]
    assert kinds("99999 and 1.3 ms <!-- complab: steady -->") == [UNPROVEN, RIGHT]
    assert kinds("1.3 ms <!-- complab: steady, -->") == [RIGHT]


def test_the_ends_of_an_interval_have_names_of_their_own():
    assert kinds("0.89–0.96 <!-- complab: ratio:low ratio:high -->") == [RIGHT, RIGHT]
    assert kinds("0.89–0.97 <!-- complab: ratio:low ratio:high -->") == [RIGHT, STALE]
    assert kinds("1 to 2 <!-- complab: between:low between:high -->") == [RIGHT, RIGHT]
    assert kinds("0.89 <!-- complab: steady:low -->") == [STALE]


@pytest.mark.parametrize("between", ["–", "--", "-", " to ", " and ", ", or "])
def test_a_unit_after_several_numbers_is_that_of_all(between):
    assert kinds(f"28.9{between}32.0 s <!-- complab: sweep:low sweep:high -->") == [RIGHT, RIGHT]
    assert kinds(f"28.9{between}32.0 ms <!-- complab: sweep:low sweep:high -->") == [STALE, STALE]


def test_a_comma_shares_a_unit_only_in_a_list_that_ends():
    units = [told.head.unit for told in prose.read("8, 1.3, 1.4 and 1.8 ms; 14, 5 s", "markdown").statements]
    assert units == ["ms", "ms", "ms", "ms", "", "s"]


def test_an_annotation_reaches_back_to_its_paragraph_and_not_beyond():
    assert kinds("It takes 1.3\nms <!-- complab: steady -->") == [RIGHT]
    assert kinds("It takes 1.32\n\n<!-- complab: steady -->") == [UNBOUND, UNPROVEN]
    assert kinds("<!-- complab: nothing -->") == [MISSING]


def test_in_latex_an_annotation_is_about_its_line():
    assert kinds("It takes 1.3~ms, 30.4\\,s % complab: steady sweep\n", prose.LATEX) == [RIGHT, RIGHT]
    assert kinds("It takes 1.4~ms % complab: steady\n", prose.LATEX) == [STALE]
    assert kinds("1.32\n% complab: steady", prose.LATEX) == [UNBOUND, UNPROVEN]


@pytest.mark.parametrize(
    "text",
    [
        *(r"1{,}322", r"1\,322", "1~322", r"$1322\times$", r"$1{,}322$", r"\num{1322}", r"\textbf{1322}"),
        *(r"about $1300$", r"$\approx 1300$", r"1322\,x", r"$1.322 \times 10^{3}$", r"$1.322\cdot10^3$"),
    ],
)
def test_latex_writes_one_number_in_many_ways(text):
    assert kinds(f"It is {text} % complab: slowdown", prose.LATEX) == [RIGHT]


@pytest.mark.parametrize(
    "text", [r"1.3\,ms", r"\SI{1.3}{\ms}", r"\qty{1.3}{\milli\second}", r"$1.3\,\mathrm{ms}$", "$1.3$~ms"]
)
def test_latex_writes_a_unit_in_many_ways(text):
    assert kinds(f"It is {text} % complab: steady", prose.LATEX) == [RIGHT]
    assert kinds(f"It is {text} % complab: sweep", prose.LATEX) == [STALE]


@pytest.mark.parametrize("kind", [prose.MARKDOWN, prose.LATEX])
def test_a_macro_needs_nothing_but_a_name_that_is_there(kind):
    text = r"\complab{steady}, \complab[low]{ratio}, \complab[low]{steady}, \complab{nothing.to_see}"
    assert kinds(text, kind) == [RIGHT, RIGHT, MISSING, MISSING]


def test_a_value_printed_at_any_rounding_is_accepted_and_its_neighbour_is_not():
    random.seed(4)
    for _ in range(2000):
        value = random.choice([-1, 1]) * 10 ** random.uniform(-9, 6)
        rounding = f"{random.randint(0, 6)} {random.choice(['decimals', 'significant', 'scientific'])}"
        if rounding == "0 significant":
            continue
        text = rounded(value, rounding)
        told = prose.written(text)
        assert manuscript.agrees(told, Decimal(repr(value))), (value, text)
        # Two steps away, since half a step is a tie that may be rounded both ways.
        for step in (2, -2):
            other = prose.Written(told.number + step * told.last, told.last)
            assert not manuscript.agrees(other, Decimal(repr(value))), (value, text)


def test_one_step_away_is_wrong_unless_it_is_a_tie():
    random.seed(5)
    for _ in range(2000):
        value = Decimal(random.randint(1, 10**9)) / 10 ** random.randint(0, 9)
        last = Decimal(1).scaleb(random.randint(-8, 3))
        below = (value / last).to_integral_value(ROUND_DOWN) * last
        right = [at for at in (below, below + last) if manuscript.agrees(prose.Written(at, last), value)]
        assert len(right) == (2 if value - below == last / 2 else 1), (value, last)


def test_every_number_of_the_reference_agrees_with_what_its_exhibit_prints():
    known = numbers.collect(FOLDER)
    told = {name: number for name, number in known.items() if number.is_number}
    lines = [
        f"{number.head} {number.unit} {number.tail} <!-- complab: {name} -->" for name, number in told.items()
    ]
    findings = manuscript.compare(prose.read("\n\n".join(lines), prose.MARKDOWN), known)
    assert {finding.kind for finding in findings} == {RIGHT}
    assert [finding.sources for finding in findings] == [(name,) for name in told]


def test_every_number_of_the_reference_with_another_last_digit_is_stale():
    known = numbers.collect(FOLDER)
    told = {name: number for name, number in known.items() if number.is_number}
    lines = []
    for name, number in told.items():
        head = number.head.removesuffix(" %")
        mantissa, exponent, power = head.partition("e")
        other = f"{mantissa[:-1]}{(int(mantissa[-1]) + 5) % 10}{exponent}{power}"
        lines.append(f"{number.head.replace(head, other)} {number.unit} <!-- complab: {name} -->")
    findings = manuscript.compare(prose.read("\n\n".join(lines), prose.MARKDOWN), known)
    assert len(findings) == len(told)
    assert {finding.kind for finding in findings} == {STALE}


# Numbers without a name


def test_an_unbound_number_that_is_printed_so_has_candidates_and_is_no_complaint():
    (finding,) = found("It takes 1.32 ms.")
    assert (finding.kind, finding.code, finding.sources) == (UNBOUND, 0, ("steady",))
    assert (
        kinds("14, 0.92 [0.89, 0.96], [0.89, 0.96], 22.8 %, 0.96, 1,322, 1.19 × 10⁻⁶, 1320 µs")
        == [UNBOUND] * 8
    )


def test_an_unbound_number_that_nothing_prints_has_no_source():
    (finding,) = found("It takes 4.56 ms.")
    assert (finding.kind, finding.code, finding.sources) == (UNPROVEN, 6, ())
    assert kinds("0.92 [0.89, 0.97], 22.8 or 1.32 s") == [UNPROVEN] * 3


def test_one_that_could_be_a_rounded_number_is_told_to_be_bound():
    (finding,) = found("It takes 1.3 ms.")
    assert (finding.kind, finding.sources) == (UNPROVEN, ("steady",))
    assert "rounded, it could be 1 number (steady); bind it" in finding.told


def test_the_author_may_vouch_for_the_numbers_of_a_line():
    assert kinds("We had 77777 cats, 8 dogs. <!-- complab: none -->\nAnd 9 birds.") == [
        VOUCHED,
        VOUCHED,
        UNPROVEN,
    ]
    assert kinds("77777 % complab: none", prose.LATEX) == [VOUCHED]
    assert kinds("1.4 ms <!-- complab: steady --> of 77777 <!-- complab: none -->") == [STALE, VOUCHED]
    assert kinds("77777 of 1.3 ms % complab: steady none", prose.LATEX) == [VOUCHED, RIGHT]


# What is a number


@pytest.mark.parametrize(
    "text",
    [
        *(
            "`1.32 ms`",
            "``a ` 5``",
            "```\n5\n```",
            "~~~python\n5\n~~~",
            "- ```\n  5\n  ```",
            "---\ndate: 5\n---\n",
        ),
        *(
            "<!-- 5 -->",
            "[a](b/5)",
            '![a](x5.png "5")',
            "[a]: https://x/5",
            "[a][5]",
            "https://x.y/5?z=6",
            "<a b='5'>",
        ),
        *(
            "# 3.2 Heading",
            "## 4. Heading",
            "1. item",
            "  2) item",
            "> 3. item",
            "[^1]",
            "[@smith2020, p. 5]",
            "[12]",
        ),
        *(
            "[3, 4]",
            "Figure 3",
            "Figs. 3 and 4",
            "Table 2.1",
            "Section 3.2",
            "§ 4",
            "Eq. (5)",
            "Sections 2, 3 and 4",
        ),
        *(
            "page 7",
            "pp. 3–4",
            "line 22",
            "2024-05-06",
            "6 May 2024",
            "May 6, 2024",
            "May 2024",
            "in 2024",
            "(2024)",
        ),
        *(
            "2019–2024",
            "12:30",
            "1990s",
            "torch 2.13",
            "PyTorch 2.6 and 2.13",
            "`torch` 2.13",
            "v1.2",
            "2.13.0+cpu",
        ),
        *(
            "1.2.3",
            "Python 3.11",
            "CUDA 12.4",
            "version 2",
            "torch==2.13",
            "RTX 2060",
            "GeForce RTX 2060",
            "H200",
        ),
        *(
            "e6",
            "int32",
            "fp16",
            "x1",
            "9th",
            "2nd",
            "64-bit",
            "64 x 64",
            "8 × 64",
            "figures/torch-2.13-cpu/e6.csv",
        ),
        *("torch-2.13-cpu", "$$ x = 5 $$", "$x_1$", "$x^2$", "E5-2670", "&#160;", "issue 7"),
    ],
)
def test_what_is_never_a_measured_number_is_skipped(text):
    assert stated(f"{text}\n") == []


@pytest.mark.parametrize(
    "text",
    [
        *("% 5", "\\begin{verbatim}\n5\n\\end{verbatim}", r"\verb|5|", r"\texttt{a 5}", r"\lstinline{5}"),
        *("\\begin{lstlisting}[language=Python, firstnumber=5]\n5\n\\end{lstlisting}", r"\[ x = 5 \]"),
        *(
            "\\begin{equation}\\label{eq:5}\n5\n\\end{equation}",
            "\\begin{align*}5\\end{align*}",
            r"$x_{12}^{3}$",
        ),
        *(r"\ref{fig:5}", r"\cite[p.~5]{a2020}", r"\citep{a5}", r"Figure~5", r"Eq.~(5)", r"\url{http://x/5}"),
        *(
            r"\href{http://x/5}{x}",
            r"\includegraphics[width=0.5\textwidth]{x5}",
            r"\vspace{5pt}",
            r"a \\[5pt] b",
        ),
        *(
            r"0.5\textwidth",
            "3.5em",
            r"\begin{tabular}{p{5cm}r}",
            "\\documentclass[12pt]{a}\n5\n\\begin{document}",
        ),
        *(r"torch~2.13", r"\setcounter{page}{5}", r"\input{chapter5}", r"\label{sec:5}"),
    ],
)
def test_what_is_never_a_measured_number_in_latex_is_skipped(text):
    assert stated(f"{text}\n", prose.LATEX) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Table 3 says 5.", ["5"]),
        ("| 6.24 † | **7.1 ms** | _8_ |", ["6.24", "7.1 ms", "8"]),
        ("torch 2.13 takes 5 s, torch 2.6 7.5 s", ["5 s", "7.5 s"]),
        ("the step takes 126 ms; 2068 calls; in 2068 calls", ["126 ms", "2068", "2068"]),
        ("lengths 32 48 128 256", ["32", "48", "128", "256"]),
        ("It ends with 5. And 6.5.", ["5", "6.5"]),
        ("-0.5, −0.5 and (+3)", ["-0.5", "−0.5", "+3"]),
        ("465x, 465×, 465 times, 465-fold", ["465 x"] * 4),
        ("107 [89, 129] s, as in [12]", ["107 s [89, 129]"]),
        ("5 % and 5% and 5 percent", ["5 %"] * 3),
        ("6.24ms/call and .5", ["6.24 ms", ".5"]),
        ("sees [5 graphs](a.md#7)", ["5"]),
        ("## 3.2 Why 5 is enough", ["5"]),
        ("a batch of (8, 64)", ["8", "64"]),
        ("$n = 5$ and $10^{-6}$", ["5", "10^{-6}"]),
        ("since 1.3 ms", ["1.3 ms"]),
        ("60s", ["60 s"]),
    ],
)
def test_what_may_be_measured_is_read(text, numbers):
    assert stated(text) == numbers


def test_annotations_in_code_do_not_count():
    assert kinds("```\n1.3 <!-- complab: nothing -->\n```\n`<!-- complab: nothing -->`") == []


def test_places_are_those_of_the_text():
    text = "---\na: 5\n---\n# 3.2 Größe\n\n`code` é 1.32 ms\n| a | 14 |\n"
    assert [(one.line, one.column) for one in found(text)] == [(6, 10), (7, 7)]


def test_any_bytes_are_read_in_reasonable_time():
    random.seed(6)
    alphabet = [
        "1",
        "2.5",
        " ",
        "`",
        "$",
        "\\",
        "{",
        "}",
        "[",
        "]",
        "(",
        ",",
        "-",
        "<!--",
        "-->",
        "%",
        "\n",
        "x",
        "|",
    ]
    for kind in (prose.MARKDOWN, prose.LATEX):
        for _ in range(200):
            manuscript.compare(prose.read("".join(random.choices(alphabet, k=300)), kind), KNOWN)
        for piece in ("1 ", "[1, ", "`", "$1", "<!--", "{", "[", "1,222", "\\begin{x}", "torch 2.13 and "):
            prose.read(piece * 3000, kind)


# The command


def audited(capsys, *words):
    with pytest.raises(SystemExit) as exit_status:
        cli.main(["audit", "--run", REFERENCE, "--manuscript", *map(str, words)])
    told = capsys.readouterr()
    return exit_status.value.code, told.out, told.err


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("No number at all.", 0),
        (r"\complab{e6_dynamic_shapes.main.default.steady_ms}", 0),
        ("11111111 <!-- complab: none -->", 0),
        ("11111111 <!-- complab: e6_dynamic_shapes.main.default.steady_ms -->", 5),
        ("11111111", 6),
        ("11111111 and 5 <!-- complab: e6.nothing --> and 5 <!-- complab: run.cells.planned -->", 7),
    ],
)
def test_the_worst_number_decides_the_exit_status(tmp_path, capsys, text, code):
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    status, out, err = audited(capsys, tmp_path / "a.md")
    assert (status, err) == (code, "")
    assert "held against run torch-2.13-cpu" in out.splitlines()[-1]
    assert audited(capsys, tmp_path / "a.md", "--json")[0] == code


def test_vouched_for_numbers_are_counted_and_listed_on_demand(tmp_path, capsys):
    (tmp_path / "a.tex").write_text("11111111 % complab: none\n", encoding="utf-8")
    _, out, _ = audited(capsys, tmp_path / "a.tex")
    assert out.splitlines() == [
        f"{tmp_path}/a.tex: 1 number held against run {REFERENCE}: 1 vouched for by the author"
    ]
    _, out, _ = audited(capsys, tmp_path / "a.tex", "--verbose")
    assert out.startswith(f"{tmp_path}/a.tex:1:1: 11111111: vouched for")


def test_json_has_every_number(tmp_path, capsys):
    name = "run.cells.planned"
    (tmp_path / "a.md").write_text(f"7 <!-- complab: {name} -->", encoding="utf-8")
    _, out, _ = audited(capsys, tmp_path / "a.md", "--json")
    told = json.loads(out)
    assert (told["run"], told["exit_code"], len(told["findings"])) == (REFERENCE, 5, 1)
    assert told["findings"][0]["sources"] == [name]


def test_what_cannot_be_read_is_told_in_one_line(tmp_path, capsys):
    (tmp_path / "a.docx").write_bytes(b"")
    (tmp_path / "a.md").write_bytes(b"\xff")
    for name in ("a.docx", "a.md", "b.md"):
        status, out, err = audited(capsys, tmp_path / name)
        assert (status, out, err.count("\n")) == (2, "", 1), name
    with pytest.raises(UsageProblem, match="draw the exhibits first"):
        (tmp_path / "a.md").write_text("5", encoding="utf-8")
        manuscript.check(tmp_path / "a.md", tmp_path)
