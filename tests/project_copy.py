"""A copy of the project to run and to change: what the pipeline tests work in."""

import shutil
from pathlib import Path

import yaml

from complab.config import PROJECT

COPIED = ("Snakefile", "config.yaml", "scripts", "workflow", "envs", "figures/complab.mplstyle")


def copy_project(folder: Path) -> Path:
    """The project without results or exhibits, at ``folder``."""
    for name in COPIED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (PROJECT / name).is_dir() else shutil.copyfile
        copy(PROJECT / name, folder / name)
    return folder


def edit_config(project: Path, edit) -> None:
    """Apply a function to the copy's configuration; what belongs to an experiment that is gone goes too.

    Subjects go first: each takes a minute of compiling.
    """
    values = yaml.safe_load((project / "config.yaml").read_text())
    values["subjects"] = {}
    edit(values)
    for scale in values["scales"].values():
        scale.pop("subjects", None)
        kept = {
            name: entry
            for name, entry in scale.get("experiments", {}).items()
            if name in values["experiments"]
        }
        scale.pop("experiments", None)
        scale |= {"experiments": kept} if kept else {}
    for script in (project / "scripts").glob("e[0-9]*_*.py"):
        if script.stem not in values["experiments"]:
            script.unlink()
    (project / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
