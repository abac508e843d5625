"""What does one experiment look like on paper? Draws every file of its exhibit, or none.

A pure function of verified evidence and the exhibit's declaration: drawn again from the same evidence,
each file is the same to the byte.
"""

import os
import shutil
from pathlib import Path

from complab import evidence
from complab.config import Settings
from complab.report import figures, gather, lineage, names, pages, tables


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
        marks, pictures = figures.draw(gathered, settings)
        files |= pictures
    if exhibit["trace"]:
        files |= pages.draw(gathered)
        files[f"{names.table_stem(experiment, names.MAIN_TABLE)}.md"] += pages.link(gathered)
    cells = {name: table.cells for name, table in built.items()}
    files[f"{experiment}.lineage.json"] = lineage.document(gathered, cells, marks)
    named = sorted(name for name in files if "/" not in name or name in wanted)
    assert named == sorted(wanted), (named, sorted(wanted))
    return place(files, Path(exhibits) / settings.run)


def place(files: dict[str, str | bytes], folder: Path) -> list[Path]:
    """Write all files beside their place first and move them in only when all are written."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".drawing.*"):
        if not Path("/proc", left.name.rpartition(".")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    private = folder / f".drawing.{os.getpid()}"
    private.mkdir()
    try:
        for name, content in files.items():
            data = content.encode("utf-8") if isinstance(content, str) else content
            (private / name).parent.mkdir(parents=True, exist_ok=True)
            (private / name).write_bytes(data)
        # A folder is replaced as a whole, so that no page of an earlier drawing stays in it.
        for name in dict.fromkeys(name.partition("/")[0] for name in files):
            if (private / name).is_dir():
                shutil.rmtree(folder / name, ignore_errors=True)
            os.replace(private / name, folder / name)
    finally:
        shutil.rmtree(private, ignore_errors=True)
    return [folder / name for name in files]


def write_manifest(settings: Settings, folder: Path) -> Path:
    """Hash every exhibit file of the run in ``folder`` into its manifest, so that a later change shows."""
    folder = Path(folder)
    wanted = names.with_pages(folder, names.every_output(settings))
    files = {name: evidence.file_entry(folder / name) for name in sorted(wanted)}
    manifest = folder / names.MANIFEST
    evidence.write_atomically(manifest, evidence.json_text({"files": files}))
    return manifest
