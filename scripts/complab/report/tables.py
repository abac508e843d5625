"""How do numbers become a table that can be read, printed and computed with?

The configuration declares rows and columns; each table cell is a `Number`. A table is built once and
written three times: csv with raw values, md and tex as printed.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from complab.config import Settings
from complab.errors import UsageProblem, one_line
from complab.report import formulas, names
from complab.report.escaping import latex, markdown
from complab.report.gather import Gathered
from complab.report.number import (
    ABSENT,
    FACTORS,
    FAILED,
    INDETERMINATE,
    NOT_APPLICABLE,
    NOT_MEASURED,
    Ask,
    Number,
)
from complab.report.selection import Where, find

WITH_INTERVAL = ("total", "total ratio", "ratio", "relative ratio", formulas.BREAK_EVEN)
MARK = "†"
WIDE, FEW = 18, 5
# A table of more lines does not fit on a page.
LONG = 40
ALIGN = r">{\raggedright\arraybackslash}"
NEEDS_LONG = "% Needs the packages array, booktabs and longtable, and a page in landscape.\n"


@dataclass(frozen=True)
class Column:
    """A declared column: what it asks and how it is headed. A note stands under the table, not in it."""

    name: str
    spec: dict

    @property
    def unit(self) -> str:
        """The unit, which the column's name ends with."""
        ending = self.name.rpartition("_")[2]
        return ending if ending in FACTORS and "_" in self.name else ""

    @property
    def label(self) -> str:
        """Heading with unit."""
        words = self.spec["label"] or self.name.removesuffix(f"_{self.unit}").replace("_", " ")
        return f"{words} ({self.unit})" if self.unit else words

    @property
    def is_note(self) -> bool:
        return self.spec["place"] == "note"

    @property
    def has_interval(self) -> bool:
        return self.spec["formula"] in WITH_INTERVAL

    def ask(self, eager: bool) -> Ask:
        """What the column asks of a row, which may be one where nothing is compiled."""
        of = self.spec["eager_of"] if eager and self.spec["eager_of"] else self.spec["of"]
        of = [of] if isinstance(of, str) else of
        rounding = self.spec["rounding"] or formulas.ROUNDINGS.get(self.spec["formula"], "0 decimals")
        cache = self.spec["cache"] if self.spec["formula"] == formulas.BREAK_EVEN else ""
        against = self.spec["against"]
        return Ask(self.spec["formula"], tuple(of), self.spec["to"], self.unit, rounding, against, cache)


@dataclass(frozen=True)
class Table:
    """A filled table: one `Number` per row key and column name."""

    name: str
    spec: dict
    columns: tuple[Column, ...]
    cells: dict[str, dict[str, Number]]

    @property
    def shown(self) -> list[Column]:
        """Columns inside the table."""
        return [column for column in self.columns if not column.is_note]


def build(gathered: Gathered, settings: Settings, name: str) -> Table:
    """Fill a declared table from the evidence."""
    spec = settings.experiment(gathered.experiment)["exhibit"]["tables"][name]
    columns = tuple(Column(key, column) for key, column in spec["columns"].items())
    policies = settings.experiment(gathered.experiment)["policies"]
    cells = {}
    for key in _keys(gathered, spec, policies):
        where, whole = _row(spec, key)
        cells[key] = {column.name: _cell(gathered, column, where, whole, policies) for column in columns}
    return Table(name, spec, columns, cells)


def _keys(gathered: Gathered, spec: dict, policies: dict) -> list[str]:
    if spec["keys"]:
        return spec["keys"]
    if spec["rows"] == "policy":
        return list(policies)
    lengths = gathered.provenance["config"]["settings"].get("lengths")
    if spec["rows"] == "case" or lengths is None:
        raise UsageProblem(
            f"{gathered.experiment}: a table with a row per {spec['rows']} needs its keys listed"
        )
    # Not from the rows: a stream has its requests even where every cell failed.
    return [str(call) for call in range(len(lengths))]


def _row(spec: dict, key: str) -> tuple[Where, Where | None]:
    """Where a row looks, and the corner a failure in which fails the whole row."""
    if spec["rows"] == "policy":
        return Where(policy=key, case=spec["case"]), Where(policy=key)
    if spec["rows"] == "case":
        return Where(case=key), Where()
    return Where(case=spec["case"], call=int(key)), None


def _cell(gathered: Gathered, column: Column, where: Where, whole: Where | None, policies: dict) -> Number:
    spec = column.spec
    policy = spec["policy"] or where.policy
    narrowed = Where(policy, spec["cache"], where.case, where.call, spec["capability"])
    eager = policies.get(policy) == ["none"]
    return find(gathered, column.ask(eager), narrowed, whole)


def to_csv(table: Table) -> str:
    """The table with raw values, row key first; an interval adds columns for its ends and processes."""
    header = [table.spec["rows"]]
    for column in table.columns:
        header += [column.name]
        header += [f"{column.name}_{end}" for end in ("low", "high", "n")] if column.has_interval else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for key, cells in table.cells.items():
        line = [key]
        for column in table.columns:
            number = cells[column.name]
            line.append(_raw(number))
            if column.has_interval:
                line += _raw_interval(number)
        writer.writerow(line)
    return text.getvalue()


def _raw(number: Number) -> str:
    if number.head == NOT_APPLICABLE:
        return "not applicable"
    if number.value is None or isinstance(number.value, str):
        return number.head
    return repr(number.value)


def _raw_interval(number: Number) -> list[str]:
    if number.head in (FAILED, INDETERMINATE):
        return [number.head] * 3
    ends = ["" if end is None else repr(end) for end in (number.low, number.high)]
    return [*ends, str(len(number.samples) or number.processes) if number.facts else ""]


def grid(table: Table, confidence: float) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the printed table, as plain text; flagged numbers bear a mark."""
    if table.spec["transposed"]:
        return _transposed(table, confidence)
    header = [table.spec["rows"], *(column.label for column in table.shown)]
    lines = [
        [key, *(_marked(cells[column.name], cells[column.name].text) for column in table.shown)]
        for key, cells in table.cells.items()
    ]
    return header, lines


def _transposed(table: Table, confidence: float) -> tuple[list[str], list[list[str]]]:
    lines = []
    for column in table.shown:
        numbers = [cells[column.name] for cells in table.cells.values()]
        lines.append([column.label, *(_marked(number, number.head) for number in numbers)])
        if any(number.tail for number in numbers):
            lines.append([_interval_label(confidence), *(number.tail for number in numbers)])
    return ["", *table.cells], lines


def _interval_label(confidence: float) -> str:
    return f"{confidence * 100:g} % interval"


def _marked(number: Number, text: str) -> str:
    return f"{text} {MARK}" if number.flags else text


def caption(gathered: Gathered, table: Table) -> str:
    """What the table shows and what it was measured on, in one line."""
    caption = f" {table.spec['caption']}." if table.spec["caption"] else ""
    stop = "" if gathered.title.endswith("?") else "."
    return f"{gathered.title}{stop}{caption} {machine(gathered)}"


def machine(gathered: Gathered) -> str:
    """What the evidence was measured on, and how much of it there is."""
    return f"Run {gathered.run}; torch {gathered.torch}; {gathered.device}; {counts(gathered)}."


def counts(gathered: Gathered) -> str:
    """How many processes were measured, failed, and could not prove their cache state."""
    return (
        f"{len(gathered.determinate)} of {len(gathered.records)} processes measured, "
        f"{len(gathered.failed)} failed, {len(gathered.indeterminate)} indeterminate"
    )


def notes(gathered: Gathered, table: Table) -> list[str]:
    """Lines under the table: what is too long for it, what is missing and why, and how to read it."""
    return [
        *_long_texts(table),
        *failures(gathered),
        *remarks(gathered, table),
        f"Evidence {gathered.digest[:16]}.",
    ]


def remarks(gathered: Gathered, table: Table) -> list[str]:
    """The lines under the table that are about its numbers alone: what is missing, and how to read it."""
    return [*_lacking(table), *_flagged(table), *_how_to_read(gathered, table)]


def failures(gathered: Gathered) -> list[str]:
    """One line per failed and per indeterminate cell, with its reason."""
    lines = []
    for record in gathered.failed:
        told = record.provenance["failure"]
        lines.append(f"Failed: {record.cell} while {told['stage']}: {one_line(told['message'], 200)}")
    for record in gathered.indeterminate:
        reasons = "; ".join(record.provenance["cache"]["reasons"]) or record.verdict
        lines.append(f"Indeterminate, so in no number: {record.cell}: {one_line(reasons, 200)}")
    return lines


def _long_texts(table: Table) -> list[str]:
    lines = []
    for column in (column for column in table.columns if column.is_note):
        keys_by_text: dict[str, list[str]] = {}
        for key, cells in table.cells.items():
            number = cells[column.name]
            if number.text not in (*ABSENT, "none"):
                keys_by_text.setdefault(_marked(number, number.text), []).append(key)
        lines += [f"{column.label}, {', '.join(keys)}: {text}" for text, keys in keys_by_text.items()]
    return [_capital(line) for line in lines]


def _lacking(table: Table) -> list[str]:
    lines = []
    for column in table.columns:
        for key, cells in table.cells.items():
            number = cells[column.name]
            if number.head == NOT_MEASURED and number.because:
                lines.append(f"Not measured: {column.label} of {key} ({'; '.join(number.because)})")
    return lines


def _flagged(table: Table) -> list[str]:
    by_rule: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for column in table.columns:
        for key, cells in table.cells.items():
            for rule, amount in cells[column.name].flags:
                by_rule.setdefault(rule, {}).setdefault(column.label, []).append((key, amount))
    lines = []
    for rule, columns in by_rule.items():
        told = "; ".join(f"{label}: {_some(flagged)}" for label, flagged in columns.items())
        lines.append(f"{MARK} {_capital(rule)}. {_capital(told)}")
    return lines


def _some(flagged: list[tuple[str, str]]) -> str:
    if len(flagged) <= FEW:
        return ", ".join(f"{key} {amount}".strip() for key, amount in flagged)
    amounts = [float(amount.split()[0]) for _, amount in flagged if amount]
    return f"{len(flagged)} rows" + (f", up to {max(amounts):.0f} %" if amounts else "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _how_to_read(gathered: Gathered, table: Table) -> list[str]:
    noise = gathered.noise
    lines = [table.spec["remark"]] if table.spec["remark"] else []
    if any(column.has_interval for column in table.columns):
        lines.append(
            f"Brackets hold {noise['confidence'] * 100:g} % t-intervals over processes; fewer than "
            f"{noise['minimum_processes']} processes give a median and their number n."
        )
    if any(column.spec["eager_of"] == formulas.CONTROL for column in table.columns):
        lines.append("The ratio of eager is the A/A control: eager against itself, in the same rounds.")
    if any(column.spec["formula"] in formulas.RELATIVE for column in table.columns):
        lines.append(
            "Policies are compared by pairs of processes of one replicate, each held against eager in itself."
        )
    if any(column.spec["formula"] == formulas.BREAK_EVEN for column in table.columns):
        lines.append(
            "Break even: calls after the first until the saving has paid for it. The ends of its interval "
            "combine those of the cost and of the saving, so it is rather too wide than too narrow."
        )
    if any(column.spec["formula"] in ("verdict", "relative verdict") for column in table.columns):
        lines.append(
            "Faster or slower: the whole interval lies beyond the noise floor (eager against itself) and "
            f"beyond {noise['practical_threshold'] * 100:g} %."
        )
    return lines


def to_md(gathered: Gathered, table: Table) -> str:
    """The table as GitHub Markdown, caption line first."""
    header, lines = grid(table, gathered.noise["confidence"])
    body = tabulate(
        [[markdown(text) for text in line] for line in lines],
        headers=[markdown(text) for text in header],
        tablefmt="github",
        disable_numparse=True,
        colalign=_alignment(header),
    )
    told = "".join(f"- {markdown(line, in_table=False)}\n" for line in notes(gathered, table))
    return f"{markdown(caption(gathered, table), in_table=False)}\n\n{body}\n\n{told}"


def _alignment(header: list[str]) -> list[str]:
    return ["left", *["right"] * (len(header) - 1)]


def to_tex(gathered: Gathered, table: Table) -> str:
    """The table as a LaTeX float that needs only the booktabs package; a long one as a `longtable`."""
    header, lines = grid(table, gathered.noise["confidence"])
    if len(lines) > LONG:
        return _long_tex(gathered, table, header, lines)
    body = booktabs(header, lines)
    label = latex(_interval_label(gathered.noise["confidence"]))
    body = body.replace(f"\n {label} ", f"\n \\quad {label} ")
    for text in {text for line in lines for text in line[1:] if len(text) > WIDE and " " in text}:
        body = body.replace(f" {latex(text)} ", f" {_stacked(text)} ")
    stem = names.table_stem(gathered.experiment, table.name)
    told = "\n".join(rf"\\ {_breakable(line)}" for line in notes(gathered, table)).removeprefix(r"\\ ")
    return (
        f"% Run {gathered.run}, evidence sha256 {gathered.digest}\n"
        "% Needs the package booktabs.\n"
        "\\begin{table}[htbp]\n\\centering\\footnotesize\n"
        f"\\caption{{{latex(caption(gathered, table))}}}\n\\label{{tab:{stem}}}\n"
        f"\\setlength{{\\tabcolsep}}{{4pt}}\n{body}\n\n"
        f"\\smallskip\n\\parbox{{\\linewidth}}{{\\scriptsize\\raggedright {told}}}\n\\end{{table}}\n"
    )


def booktabs(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """The tabular of a float, of the package booktabs."""
    body = tabulate(
        [[latex(text) for text in line] for line in lines],
        headers=[latex(text) for text in header],
        tablefmt="latex_raw",
        disable_numparse=True,
        colalign=_alignment(header),
    )
    for rule in ("toprule", "midrule", "bottomrule"):
        body = body.replace(r"\hline", f"\\{rule}", 1)
    return body


def _long_tex(gathered: Gathered, table: Table, header: list[str], lines: list[list[str]]) -> str:
    """The table over several pages, for a page in landscape."""
    lengths = [min(max(map(len, column)), WIDE) for column in zip(*lines, strict=True)]
    widths = [0.85 * length / sum(lengths) for length in lengths]
    stem = names.table_stem(gathered.experiment, table.name)
    body = longtable(widths, header, lines, caption(gathered, table), f"tab:{stem}")
    told = "\n\n".join(_breakable(line) for line in notes(gathered, table))
    return (
        f"% Run {gathered.run}, evidence sha256 {gathered.digest}\n"
        f"{NEEDS_LONG}{body}\n{{\\scriptsize\\raggedright\\noindent {told}\\par}}\n"
    )


def longtable(widths: Sequence[float], header: Sequence[str], lines: Iterable, title: str, label: str) -> str:
    """A table over several pages, its header on each; ``widths`` are parts of a line's, together below 1."""
    columns = "".join(f"{ALIGN}p{{{width:.3g}\\linewidth}}" for width in widths)
    head = " & ".join(map(latex, header)) + r" \\"
    body = "\n".join(" & ".join(map(_breakable, line)) + r" \\" for line in lines)
    return (
        f"{{\\scriptsize\\setlength{{\\tabcolsep}}{{3pt}}\n\\begin{{longtable}}{{{columns}}}\n"
        f"\\caption{{{latex(title)}}}\\label{{{label}}}\\\\\n"
        f"\\toprule\n{head}\n\\midrule\n\\endfirsthead\n"
        f"\\toprule\n{head}\n\\midrule\n\\endhead\n\\bottomrule\n\\endfoot\n"
        f"{body}\n\\end{{longtable}}}}\n"
    )


def _breakable(text: str) -> str:
    """Long names may be parted at their joints, or they would stand in the next column."""
    return latex(text).replace(r"\_", r"\_\allowbreak{}").replace("/", r"/\allowbreak{}")


def _stacked(text: str) -> str:
    """A long text in two lines, so that the verdicts do not set the width of the page."""
    words = text.split(" ")
    cut = min(range(1, len(words)), key=lambda at: abs(len(" ".join(words[:at])) - len(text) / 2))
    first, second = " ".join(words[:cut]), " ".join(words[cut:])
    return rf"\shortstack[r]{{{latex(first)}\\{latex(second)}}}"


def write(gathered: Gathered, table: Table) -> dict[str, str]:
    """The table's files by name."""
    stem = names.table_stem(gathered.experiment, table.name)
    return {
        f"{stem}.csv": to_csv(table),
        f"{stem}.md": to_md(gathered, table),
        f"{stem}.tex": to_tex(gathered, table),
    }
