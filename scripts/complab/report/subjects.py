"""What do the diagnosed subjects of a run look like on paper, and is it still what was found?

Of each subject the rules keep one ledger, as data. Everything shown of it is drawn from that: a page of
Markdown, the picture of its calls, its entry on the evidence page.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from complab import evidence, staleness
from complab.config import Settings
from complab.diagnose import kept, ledger
from complab.errors import Unverified
from complab.report import names, placing
from complab.report.classes import STALE, TAMPERED, Finding
from complab.report.redrawing import Redrawing
from complab.report.tree import Tree


def draw(settings: Settings, name: str, results: Path, exhibits: Path) -> list[Path]:
    """Write the exhibit files of a subject of the settings' run; Unverified if there is no ledger of it."""
    told = read(Path(results) / settings.run / kept.FOLDER / name / evidence.LEDGER)
    return placing.place(files(name, told), Path(exhibits) / settings.run)


def read(path: Path) -> dict:
    """A subject's ledger; Unverified if the file is missing or is none."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        ledger.text(told)
    except FileNotFoundError:
        raise Unverified(f"{path}: missing; diagnose the subject") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unverified(f"{path}: is no ledger of a subject ({error}); diagnose it again") from error
    return told


def files(name: str, told: dict) -> dict[str, str | bytes]:
    """The exhibit files of a subject's ledger by name."""
    # Loaded here: audit reads ledgers and draws no picture of them.
    from complab.diagnose import picture

    stem = f"subject_{name}"
    pictures = {f"{stem}.{kind}": content for kind, content in picture.draw(told).items()}
    drawn = {f"{stem}.json": evidence.json_text(told), f"{stem}.md": ledger.markdown(told), **pictures}
    assert sorted(drawn) == sorted(names.subject_outputs(name)), sorted(drawn)
    return drawn


def entries(settings: Settings, exhibits: Path) -> list[dict]:
    """What the evidence page shows of each subject."""
    return [_entry(name, exhibits / f"subject_{name}") for name in settings["subjects"]]


def _entry(name: str, stem: Path) -> dict:
    from complab.report import figures

    told = read(stem.with_suffix(".json"))
    return {
        "name": name,
        "subject": told["subject"]["name"],
        "sentence": told["sentence"],
        "text": ledger.text(told),
        **figures.embedded(stem.with_suffix(".svg").read_bytes()),
        "alternative": f"Latency and fate of each call of {name}; the ledger beside it has the counts.",
        "files": names.subject_outputs(name),
    }


def problems(settings: Settings, results: Path) -> list[str]:
    """One line per subject that could not be diagnosed."""
    folder = Path(results) / settings.run / kept.FOLDER
    found = {name: read(folder / name / evidence.LEDGER)["problem"] for name in settings["subjects"]}
    return [f"subjects/{name}: {problem}" for name, problem in found.items() if problem]


def findings(tree: Tree, settings: Settings) -> Iterator[Finding]:
    """Subjects that changed since they were diagnosed, and files that are not drawn from their ledger."""
    redrawing = Redrawing(tree, settings)
    today = staleness.diagnosing_code() if settings["subjects"] else ""
    for name in settings["subjects"]:
        where = f"figures/{tree.run}/subject_{name}.json"
        path = tree.exhibits / f"subject_{name}.json"
        if not path.is_file():
            yield Finding(where, STALE, "config: a subject that the configuration asks for was not diagnosed")
            continue
        try:
            told = read(path)
        except Unverified as problem:
            yield Finding(where, TAMPERED, str(problem).partition(": ")[2])
            continue
        yield from (Finding(where, STALE, reason) for reason in kept.changed(told, today))
        yield from _otherwise(tree, name, told, redrawing)


def _otherwise(tree: Tree, name: str, told: dict, redrawing: Redrawing) -> Iterator[Finding]:
    source = tree.evidence / kept.FOLDER / name / evidence.LEDGER
    texts = {f"subject_{name}.json": evidence.json_text(told), f"subject_{name}.md": ledger.markdown(told)}
    for file, text in texts.items():
        path = tree.exhibits / file
        if path.is_file() and path.read_text(encoding="utf-8") != text:
            told_of = f"{redrawing.why(redrawing.kind)}is not what its ledger gives"
            yield Finding(f"figures/{tree.run}/{file}", redrawing.kind, told_of)
    if source.is_file() and source.read_text(encoding="utf-8") != texts[f"subject_{name}.json"]:
        found = "is not the ledger that its exhibit was drawn from"
        yield Finding(f"{tree.source}/{kept.FOLDER}/{name}/{evidence.LEDGER}", TAMPERED, found)
