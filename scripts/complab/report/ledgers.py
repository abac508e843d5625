"""What do all compiled regions of a run look like side by side, and what could the run not see?

One table of every ledger, a few ledgers written out as texts, and one table of the noise that the run's
own controls found. Replicates are merged; cold and warm processes stand in one row.
"""

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from complab.config import Settings
from complab.measure.ledger import LEVELS, is_region
from complab.measure.observers import observed
from complab.report import formulas, gather, lineage, names, placing, tables
from complab.report.gather import Gathered
from complab.report.number import ABSENT, NOT_APPLICABLE, Ask, Number, absent
from complab.report.selection import Where, find

WIDTH = 100
_SPEC = {"label": "", "place": "table", "eager_of": "", "formula": ""}


@dataclass(frozen=True)
class Region:
    """One case under one policy, over all its processes."""

    gathered: Gathered
    policy: str
    case: str
    caches: tuple[str, ...]
    metrics: frozenset[str]

    @property
    def key(self) -> str:
        """Name of its row."""
        return "/".join(filter(None, (self.gathered.experiment, self.policy, self.case)))

    @property
    def has_ledger(self) -> bool:
        """Whether something is compiled that its own rows can judge."""
        return is_region(self.policy, self.case, self.metrics)

    @property
    def is_observed(self) -> bool:
        """Whether it ran on a filled cache, in a process of the cold cell that an instrument looked at."""
        return observed(self.policy, self.case)

    @property
    def first(self) -> Ask:
        """Seconds of the first compiled call."""
        metric = "first_call" if "first_call" in self.metrics else "compiled_time"
        return Ask("total", (metric,), unit="s", rounding="3 significant")

    def ask(self, formula: str, *of: str, cache: str = "", call: int | None = None, **told: str) -> Number:
        """The number of a question about the region; by default of every cell that has it."""
        rounding = formulas.ROUNDINGS.get(formula, "0 decimals")
        return self.find(Ask(formula, of, **({"rounding": rounding} | told)), cache or self.every, call)

    def find(self, ask: Ask, cache: str, call: int | None = None) -> Number:
        """The number of a whole question; any failed cell of the policy fails it."""
        where = Where(self.policy, cache, self.case, call)
        return find(self.gathered, ask, where, Where(policy=self.policy))

    @property
    def every(self) -> str:
        """The cache states whose cells have the region, as `selection.CACHES` names them."""
        return self.caches[0] if len(self.caches) == 1 else "compiled" if "none" not in self.caches else "any"

    def first_call(self, cache: str) -> Number:
        """The first compiled call under a cache state, in seconds."""
        call = None if "first_call" in self.metrics else 0
        return self.find(self.first, cache, call)


def regions(gathered: Gathered, keep: Callable[[Region], bool]) -> list[Region]:
    """The regions of an experiment for which ``keep`` says yes, in order of the cells.

    A policy without any determinate cell comes as one region without a case, so that its failure is told.
    """
    told = []
    for policy in dict.fromkeys(record.cell.policy for record in gathered.records):
        cases = {case: at for (other, case), at in gathered.cases.items() if other == policy} or {
            "": ({"any": True}, set())
        }
        told += [
            Region(gathered, policy, case, tuple(caches), frozenset(metrics))
            for case, (caches, metrics) in cases.items()
        ]
    return list(filter(keep, told))


# The table of ledgers.


def ledger_row(region: Region) -> dict[str, Number]:
    """One row of the table of ledgers, by column."""
    row = {level.lower().replace(" ", "_"): region.ask("level verdict", level) for level in LEVELS}
    row |= {
        "mechanism": region.ask("mechanism"),
        "cold_first_call_s": region.first_call("cold-or-none"),
        "warm_first_call_s": region.first_call("warm"),
        "steady_ms": region.ask("median", "steady_compiled", cache="cold-or-none", unit="ms"),
        "ratio": region.ask("ratio", "steady_compiled", cache="cold-or-none", to="steady_eager"),
        "verdict": region.ask("ledger verdict"),
        "evidence": region.ask("ledger sentence"),
    }
    if row["worth_it"].head == formulas.NO_EVIDENCE:
        row |= _worth(region, row)
    return row


def _worth(region: Region, row: dict[str, Number]) -> dict[str, Number]:
    """The last level over processes, where all before it pass: one process could not judge it."""
    told = {
        column: region.ask(formula, "steady_compiled", cache="cold-or-none", to="steady_eager")
        for column, formula in _WORTH.items()
    }
    return {} if told["worth_it"].head in ABSENT else told


_WORTH = dict(zip(("worth_it", "evidence", "mechanism", "verdict"), formulas.WORTH, strict=True))
_LEDGER_COLUMNS = {
    "ratio": {"label": "steady state relative to eager", "formula": "ratio"},
    "cold_first_call_s": {"formula": "total"},
    "warm_first_call_s": {"formula": "total"},
    "steady_ms": {"label": "steady state"},
    "evidence": {"place": "note"},
}


def ledger_table(gathered: Iterable[Gathered]) -> tables.Table:
    """Every compiled region of the run."""
    rows = {
        region.key: ledger_row(region)
        for experiment in gathered
        for region in regions(experiment, lambda region: region.has_ledger)
    }
    spec = {
        "rows": "region",
        "transposed": False,
        "caption": "Every compiled region: the five levels, the cause, the cost",
        "remark": (
            "Levels are judged in order up to the first that does not pass. Processes of a region are "
            "merged: the one that stops first speaks for all. WORTH IT is judged over the cold processes. "
            "A first call after another case of its process may find binaries that this one left. What an "
            "instrument looks at, or a stance is set for, is no region."
        ),
    }
    return _table(spec, rows, _LEDGER_COLUMNS)


def _table(spec: dict, rows: dict[str, dict[str, Number]], told: dict[str, dict]) -> tables.Table:
    names_of = next(iter(rows.values()), {})
    columns = tuple(tables.Column(name, _SPEC | told.get(name, {})) for name in names_of)
    return tables.Table(names.MAIN_TABLE, spec, columns, rows)


# The noise of the run.


def noise_row(region: Region) -> dict[str, Number]:
    """What the A/A control of a region finds, and what its processes could not see."""
    compiled = "steady_compiled" if "steady_compiled" in region.metrics else "steady_control"
    told = {"cache": "cold-or-none", "to": "steady_eager"}
    return {
        "control": region.ask("ratio", "steady_control", rounding="3 decimals", **told),
        "control_differs": region.ask("control difference", "steady_control", **told),
        "smallest_steady_effect": region.ask("smallest effect", compiled, **told),
        "smallest_cold_cost_effect": _cost_effect(region, "cold-or-none"),
        "smallest_warm_cost_effect": _cost_effect(region, "warm"),
    }


def _cost_effect(region: Region, cache: str) -> Number:
    """The smallest change of a compile cost that could be told; an observed process pays neither cost."""
    ask = Ask("smallest cost effect", region.first.of, rounding=formulas.ROUNDINGS["smallest cost effect"])
    return absent(ask, NOT_APPLICABLE) if region.is_observed else region.find(ask, cache)


_NOISE_COLUMNS = {
    "control": {"label": "eager relative to itself", "formula": "ratio"},
    "control_differs": {"label": "a difference where there is none"},
    "smallest_steady_effect": {"label": "smallest effect it could resolve: steady state"},
    "smallest_cold_cost_effect": {"label": "compile cost, cold"},
    "smallest_warm_cost_effect": {"label": "compile cost, warm"},
}


def noise_table(gathered: Iterable[Gathered]) -> tables.Table:
    """Every region that was timed."""
    timed = {"steady_control", "first_call", "compiled_time"}
    rows = {
        region.key: noise_row(region)
        for experiment in gathered
        for region in regions(experiment, lambda region: bool(timed & region.metrics) or not region.metrics)
    }
    spec = {
        "rows": "region",
        "transposed": False,
        "caption": "What the run could not have seen",
        "remark": (
            "Eager relative to itself is the A/A control: passes in the same rounds, nothing changed. "
            "An effect smaller than the smallest one could not have been told from none; a compile cost is "
            "compared between two groups of as many processes."
        ),
    }
    return _table(spec, rows, _NOISE_COLUMNS)


# A ledger written out.

Line = tuple[str, str, Number]


def ledger_lines(region: Region) -> list[Line]:
    """A filled ledger: (section, what is told, number)."""
    return [
        *_capture(region),
        *_assumptions(region),
        *_stability(region),
        *_cost(region),
        *_agreement(region),
    ]


def _entries(region: Region, section: str, **labels: str) -> list[Line]:
    told = {label: region.ask("ledger fact", f"{section}/{entry}") for entry, label in labels.items()}
    return [(section, label, number) for label, number in told.items()]


def _capture(region: Region) -> list[Line]:
    return _entries(
        region,
        "capture",
        frames_tried="frames tried",
        frames_compiled="frames compiled",
        frames_skipped="frames skipped",
        graphs_captured="graphs captured",
        graph_breaks_log="breaks in the log",
        graph_breaks_explain="breaks by explain",
        graphs_explain="graphs by explain",
        fullgraph_accepts="fullgraph accepts",
        where="where it breaks",
    )


def _assumptions(region: Region) -> list[Line]:
    return _entries(region, "assumptions", failed="failed", held="held")


def _stability(region: Region) -> list[Line]:
    return _entries(
        region,
        "stability",
        calls="calls",
        distinct_inputs="distinct inputs",
        new_variants="new variants",
        reuses="reuses",
        refused_attempts="refused attempts",
        eager_calls="eager after the limit",
        recompiles_logged="recompiles logged",
        limit="limit",
        limit_reached="limit reached",
    )


def _cost(region: Region) -> list[Line]:
    told = {
        "cold first call (s)": region.first_call("cold-or-none"),
        "warm first call (s)": region.first_call("warm"),
        "steady state (ms)": region.ask("median", "steady_compiled", cache="cold-or-none", unit="ms"),
        "steady eager (ms)": region.ask("median", "steady_eager", cache="cold-or-none", unit="ms"),
        "relative to eager": region.ask("ratio", "steady_compiled", cache="cold-or-none", to="steady_eager"),
        "steady state is": region.ask("verdict", "steady_compiled", cache="cold-or-none", to="steady_eager"),
    }
    if "first_call" in region.metrics and "cold" in region.caches:
        of = ("first_call", "steady_compiled")
        told["calls to break even"] = region.find(
            Ask(formulas.BREAK_EVEN, of, "steady_eager", cache="cold"), "cold"
        )
    return [("cost", label, number) for label, number in told.items()]


def _agreement(region: Region) -> list[Line]:
    largest = region.ask("maximum", "max_abs_diff")
    return [
        ("correctness", "largest difference", largest),
        *_entries(
            region, "correctness", bitwise="equal to the bit", rtol="rtol", atol="atol", reason="because"
        ),
    ]


def ledger_text(title: str, region: Region, lines: list[Line], row: dict[str, Number], about: str) -> str:
    """The ledger as a text: sections, then the verdict, then the five levels as a ladder."""
    head = f"COMPILATION LEDGER: {title}"
    text = [head, "=" * len(head), ""]
    text += _wrapped("region", "what", f"case {region.case} under policy {region.policy}")
    text += _wrapped("", "from", about)
    last = "region"
    for section, label, number in lines:
        if section != last:
            text.append("")
        text += _wrapped(section if section != last else "", label, _shown(number))
        last = section
    text.append("")
    text += _wrapped("verdict", "first to stop", _shown(row["verdict"]))
    text += _wrapped("", "mechanism", _shown(row["mechanism"]))
    text += _wrapped("", "evidence", _shown(row["evidence"]))
    text += ["", "ladder"]
    for level in LEVELS:
        verdict, sentence = (row[f"{level} {what}"] for what in ("verdict", "sentence"))
        text += _wrapped("", f"{level:9s} {_shown(verdict)}", _shown(sentence))
    return "\n".join(text) + "\n"


def _shown(number: Number) -> str:
    return f"{number.text} {tables.MARK}" if number.flags else number.text


def _wrapped(section: str, label: str, text: str) -> list[str]:
    start = f"{section:13s} {label:23s} "
    return textwrap.wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False
    )


def _written_out(
    gathered: list[Gathered], told: dict, title: str
) -> tuple[str, dict[str, dict[str, Number]]]:
    """A ledger's text and its numbers by section and label."""
    experiment = next(each for each in gathered if each.experiment == told["experiment"])
    found = regions(experiment, lambda region: (region.policy, region.case) == (told["policy"], told["case"]))
    region = next(iter(found), None) or Region(
        experiment, told["policy"], told["case"], ("any",), frozenset()
    )
    lines, row = ledger_lines(region), ledger_row(region)
    for level in LEVELS:
        row[f"{level} verdict"] = row[level.lower().replace(" ", "_")]
        row[f"{level} sentence"] = region.ask("level sentence", level)
    if row["worth_it"].ask.formula == "worth it":
        row["WORTH IT sentence"] = row["evidence"]
    about = f"{experiment.experiment}. {tables.machine(experiment)} Evidence {experiment.digest[:16]}."
    cells: dict[str, dict[str, Number]] = {}
    for section, label, number in lines:
        cells.setdefault(section, {})[label] = number
    cells["verdict"] = {key: row[key] for key in ("verdict", "mechanism", "evidence")}
    cells["ladder"] = {key: row[key] for level in LEVELS for key in (f"{level} verdict", f"{level} sentence")}
    return ledger_text(title, region, lines, row, about), cells


@dataclass(frozen=True)
class Sheet:
    """A table about all experiments with its evidence and, by table, every number that its lineage has."""

    whole: Gathered
    table: tables.Table
    cells: dict[str, dict[str, dict[str, Number]]]


def sheets(settings: Settings, gathered: list[Gathered]) -> tuple[list[Sheet], dict[str, str]]:
    """The run's ledgers and its noise, and the ledgers written out by the name of their file."""
    written: dict[str, str] = {}
    cells: dict[str, dict[str, dict[str, Number]]] = {}
    for name, told in names.ledger_texts(settings).items():
        written[f"ledger_{name}.txt"], cells[f"ledger_{name}"] = _written_out(gathered, told, told["title"])
    both = (
        (names.LEDGERS, "Compilation ledgers", ledger_table(gathered), cells),
        (names.NOISE, "Noise", noise_table(gathered), {}),
    )
    return [
        Sheet(gather.together(gathered, name, title), table, {names.MAIN_TABLE: table.cells} | further)
        for name, title, table, further in both
    ], written


def draw(settings: Settings, results: Path, figures: Path) -> list[Path]:
    """Write the run's ledgers and noise, from the evidence of every experiment.

    Raises Unverified, and writes nothing, if any evidence does not verify.
    """
    gathered = [gather.gather(settings, name, Path(results)) for name in settings["experiments"]]
    both, files = sheets(settings, gathered)
    for sheet in both:
        files |= tables.write(sheet.whole, sheet.table)
        files[f"{sheet.whole.experiment}.lineage.json"] = lineage.document(sheet.whole, sheet.cells, {})
    assert sorted(files) == sorted(names.ledger_outputs(settings)), sorted(files)
    return placing.place(files, Path(figures) / settings.run)
