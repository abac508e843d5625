"""How is what became of the claims told? One line per claim: the chapter's value, ours, verdict, reason.

Written three times, csv, md and tex, with a lineage that names the evidence rows of every number.
"""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from complab.config import Settings
from complab.report import gather, lineage, names, placing
from complab.report.claims import DIFFERS, VERDICTS, Finding, Judgement, judge
from complab.report.escaping import latex, markdown
from complab.report.gather import Gathered
from complab.report.register import CLASSES, Register, load
from complab.report.tables import NEEDS_LONG, booktabs, failures, longtable

HEADER = ("claim", "class", "the chapter says", "its value", "measured here", "verdict", "reason")


def draw(settings: Settings, results: Path, figures: Path) -> list[Path]:
    """Judge every claim from the evidence of the settings' run and write what came of it.

    Raises Unverified, and writes nothing, if any evidence does not verify.
    """
    evidence = {name: gather.gather(settings, name, Path(results)) for name in settings["experiments"]}
    listed = load()
    files = write(listed, evidence, judge(listed, evidence))
    assert sorted(files) == sorted(names.CLAIMS), sorted(files)
    return placing.place(files, Path(figures) / settings.run)


def write(
    register: Register, evidence: Mapping[str, Gathered], judged: Sequence[Judgement]
) -> dict[str, str]:
    """The four files by name."""
    return tables_of(register, evidence, judged) | {"claims.lineage.json": document(evidence, judged)}


def tables_of(
    register: Register, evidence: Mapping[str, Gathered], judged: Sequence[Judgement]
) -> dict[str, str]:
    """The table of claims by the name of each file."""
    return {
        "claims.csv": to_csv(judged),
        "claims.md": to_md(register, evidence, judged),
        "claims.tex": to_tex(register, evidence, judged),
    }


def counts(judged: Sequence[Judgement]) -> list[list[str]]:
    """Claims of each class by verdict, and all; what differs is told apart by whether it is explained."""
    lines = []
    for name, kinds in [*((kind, (kind,)) for kind in CLASSES), ("all", CLASSES)]:
        mine = [judgement for judgement in judged if judgement.claim.kind in kinds]
        found = Counter(judgement.verdict for judgement in mine)
        explained = sum(judgement.verdict == DIFFERS and bool(judgement.design) for judgement in mine)
        told = {verdict: str(found[verdict]) for verdict in VERDICTS}
        if explained:
            told[DIFFERS] += f" ({explained} by design)"
        lines.append([name, *told.values(), str(len(mine))])
    return lines


def to_csv(judged: Sequence[Judgement]) -> str:
    """All claims, one per line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "experiment", "class", "says", "chapter", "measured", "verdict", "reason"])
    for judgement in judged:
        name, *told = _line(judgement)
        writer.writerow([name, judgement.claim.experiment, *told])
    return text.getvalue()


def _line(judgement: Judgement) -> list[str]:
    claim = judgement.claim
    return [claim.id, claim.kind, claim.says, claim.chapter] + [
        judgement.measured,
        judgement.verdict,
        judgement.reason,
    ]


def _caption(register: Register, evidence: Mapping[str, Gathered]) -> str:
    found = sorted({f"torch {told.torch}, {told.device}" for told in evidence.values()})
    run = next(iter(evidence.values())).run
    return (
        "What the chapter says, and what was measured here. "
        f"Chapter: {register.chapter['machine']}. Run {run}: {'; '.join(found)}."
    )


def notes(register: Register, evidence: Mapping[str, Gathered]) -> list[str]:
    """Lines under the claims: which cells failed, and what the verdicts mean."""
    noise = next(iter(evidence.values())).noise
    same, factor = register.rules["same_within"] * 100, register.rules["time_factor"]
    return [
        *(line for told in evidence.values() for line in failures(told)),
        "Not comparable: measured, but neither supports nor contradicts the claim. Not measured: no number.",
        f"Ordinal: a difference needs an interval ({noise['confidence'] * 100:g} %) beyond the noise floor "
        f"and {noise['practical_threshold'] * 100:g} %; the same needs an interval within {same:g} %.",
        "Timing: judged only on the chapter's device and release, where a number holds "
        f"within a factor of {factor:g}.",
    ]


def to_md(register: Register, evidence: Mapping[str, Gathered], judged: Sequence[Judgement]) -> str:
    """A summary and one table per experiment, as GitHub Markdown."""
    parts = [markdown(_caption(register, evidence), in_table=False)]
    parts.append(_github(["class", *VERDICTS, "claims"], counts(judged)))
    for experiment in dict.fromkeys(judgement.claim.experiment for judgement in judged):
        lines = [_line(judgement) for judgement in judged if judgement.claim.experiment == experiment]
        parts += [f"**{experiment}**", _github(HEADER, lines)]
    told = "".join(f"- {markdown(line, in_table=False)}\n" for line in notes(register, evidence))
    return "\n\n".join([*parts, told])


def _github(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [[markdown(text) for text in line] for line in lines]
    return tabulate(cells, headers=list(header), tablefmt="github", disable_numparse=True)


def to_tex(register: Register, evidence: Mapping[str, Gathered], judged: Sequence[Judgement]) -> str:
    """The summary, and all claims in a table over several pages, for a page in landscape."""
    widths = (0.11, 0.05, 0.2, 0.14, 0.18, 0.08, 0.16)
    table = longtable(widths, HEADER, map(_line, judged), _caption(register, evidence), "tab:claims")
    summary = booktabs(["class", *VERDICTS, "claims"], counts(judged))
    told = " ".join(latex(line) for line in notes(register, evidence))
    return (
        f"% Run {next(iter(evidence.values())).run}\n"
        f"{NEEDS_LONG}\\begin{{table}}[htbp]\n\\centering\\footnotesize\n"
        f"\\caption{{Claims by class and verdict. {told}}}\n\\label{{tab:claims-summary}}\n"
        f"{summary}\n\\end{{table}}\n"
        f"{table}"
    )


def document(evidence: Mapping[str, Gathered], judged: Sequence[Judgement]) -> str:
    """The lineage of every number of every claim, as JSON text."""
    return lineage.json_text(content(evidence, judged))


def content(evidence: Mapping[str, Gathered], judged: Sequence[Judgement]) -> dict:
    """What the lineage of the claims holds."""
    return {
        "lineage_version": lineage.VERSION,
        "run": next(iter(evidence.values())).run,
        "experiments": {
            name: {
                "evidence_digest": told.digest,
                "evidence": told.hashes,
                "environment": told.provenance["fingerprint"],
                "code_digest": told.provenance["code"]["digest"],
            }
            for name, told in evidence.items()
        },
        "noise": next(iter(evidence.values())).noise,
        "claims": {
            judgement.claim.id: {
                "class": judgement.claim.kind,
                "verdict": judgement.verdict,
                "reason": judgement.reason,
                "checks": [_check(finding) for finding in judgement.findings],
            }
            for judgement in judged
        },
    }


def _check(finding: Finding) -> dict:
    check = finding.check
    told = {"operator": check.operator, "wanted": check.wanted, "verdict": finding.verdict}
    told["number"] = lineage.entry(finding.numbers[0])
    if check.other:
        told["other"] = lineage.entry(finding.numbers[1])
    if finding.word:
        told["word"] = lineage.entry(finding.word)
    return told
