"""What does one experiment look like on paper? Draws every file of its exhibit, or none.

A pure function of verified evidence and the exhibit's declaration: drawn again from the same evidence,
each file is the same to the byte.
"""

from pathlib import Path

from complab import evidence
from complab.config import Settings
from complab.report import gather, lineage, names, pages, placing, tables
from complab.report.drawing import NO_CHOICE, attempts_so_far, drawn_by
from complab.staleness import digest_of


def draw(settings: Settings, experiment: str, results: Path, exhibits: Path) -> list[Path]:
    """Write the experiment's tables, figure and lineage, from the evidence of the settings' run.

    ``results`` and ``exhibits`` are the folders that hold the runs' folders. Returns the files. Raises
    Unverified, and writes nothing, if the evidence does not verify.
    """
    wanted = names.outputs(settings, experiment)
    if not wanted:
        return []
    gathered = gather.gather(settings, experiment, Path(results))
    exhibit = settings.experiment(experiment)["exhibit"]
    built = {name: tables.build(gathered, settings, name) for name in exhibit["tables"]}
    files: dict[str, str | bytes] = {}
    for table in built.values():
        files |= tables.write(gathered, table)
    marks = {}
    if "figure" in exhibit:
        # Here: the drawing library takes longer to start than the tables of an exhibit without a figure take.
        from complab.report import figures

        marks, pictures = figures.draw(gathered, settings)
        files |= pictures
    if exhibit["trace"]:
        files |= pages.draw(gathered)
        files[f"{names.table_stem(experiment, names.MAIN_TABLE)}.md"] += pages.link(gathered)
    cells = {name: table.cells for name, table in built.items()}
    files[f"{experiment}.lineage.json"] = lineage.document(gathered, cells, marks)
    named = sorted(name for name in files if "/" not in name or name in wanted)
    assert named == sorted(wanted), (named, sorted(wanted))
    return placing.place(files, Path(exhibits) / settings.run)


def write_manifest(
    settings: Settings, folder: Path, results: Path | None = None, overrides: dict | None = None
) -> Path:
    """Hash every exhibit file of the run in ``folder`` into its manifest, so that a later change shows.

    It also holds what audit needs to draw them again: what was laid over the configuration, which code
    drew them, and how far the list of attempts below ``results`` went.
    """
    folder = Path(folder)
    wanted = names.with_pages(folder, names.every_output(settings))
    told = {
        "files": {name: evidence.file_entry(folder / name) for name in sorted(wanted)},
        # Where an interpreter or a scratch folder lies says nothing about a number.
        "overrides": {key: value for key, value in (overrides or {}).items() if key not in NO_CHOICE},
        "drawn_by": drawn_by(settings),
    }
    if results is not None:
        told["attempts"] = attempts_so_far(Path(results) / settings.run)
    manifest = folder / names.MANIFEST
    # Of itself, too: whoever changes a byte of the manifest alone is found out.
    told["sha256"] = digest_of(told)
    evidence.write_atomically(manifest, evidence.json_text(told))
    return manifest
