"""Which precompiled headers does this environment's C++ compiler get, always the same ones?

Building them takes longer than most cold compiles and happens outside the cache folder. So they are
built once per environment, sealed with a manifest, and each measured process gets the sealed files.
Releases that keep them inside the cache folder (2.6) get an empty set. The vector instruction set is
probed here once as well: where the processor's own word for it agrees, measured processes take that
instead of compiling a program per candidate, which is no part of any experiment.
"""

import contextlib
import fcntl
import json
import os
import shutil
from pathlib import Path

from complab import seals
from complab.config import PROJECT
from complab.errors import Unverified
from complab.evidence import json_text, write_atomically
from complab.measure import cache, isolation
from complab.staleness import Plan, code_digests, digest_of

MANIFEST = "manifest.json"
# What a cell that compiles nothing gets.
NOTHING = {"folder": None, "files": {}, "build_s": 0, "vector_isa_known": False}


def folder_of(plan: Plan) -> Path:
    """Where a plan's headers lie; what is compiled, threads, device and the interpreter's folders decide too.

    A header is named by the compiler's command line, which holds the folders that torch lies in.
    """
    facts = dict(plan.conditions)
    facts["folder"] = str(Path(os.path.abspath(plan.settings.python)).parent)
    facts |= code_digests(Path(__file__).with_name("header_user.py"))
    return PROJECT / "results" / "headers" / digest_of(facts)[:16]


def require(plan: Plan, say) -> dict:
    """Folder, manifest and build seconds of the sealed headers, built first if this environment has none."""
    folder = folder_of(plan)
    with _exclusive(folder):
        sealed = _sealed_here(folder)
        if sealed is None:
            _build(folder, plan, say)
            sealed = _sealed_here(folder)
    return {"folder": folder, **sealed}


def _sealed_here(folder: Path) -> dict | None:
    """The manifest of the headers, None if there is none or this machine has not sealed it."""
    try:
        sealed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return sealed if seals.ours(cache.root_hash(sealed["files"]), sealed.get("seal")) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


@contextlib.contextmanager
def _exclusive(folder: Path):
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(folder: Path, plan: Plan, say) -> None:
    say("building precompiled headers, once for this environment")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    settings, python = plan.settings, plan.settings.python
    isolation.prime(python)
    cell = {"experiment": "complab.measure.header_user", "policy": "default", "cache": "cold"}
    needed = {key: settings[key] for key in ("threads", "seed", "recompile_limit", "tolerance")}
    with isolation.workplace(settings["scratch"]) as place:
        environment = isolation.child_environment(place, settings["threads"], plan.device)
        request = {"cell": cell, "config": {**needed, "device": plan.device}, "vector_isa_known": False}
        done = isolation.run_process(
            "timed", request, place, python, environment, settings["cell_timeout"], say
        )
        for path in sorted(place.headers.iterdir()) if place.headers.exists() else []:
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
                (folder / path.name).chmod(0o444)
    files = _sealed_now(folder)
    isa = next(row for row in done["rows"] if row["metric"] == "vector_isa_known")
    told = {
        "files": files,
        "seal": seals.mark(cache.root_hash(files)),
        "build_s": round(done["seconds"], 3),
        "vector_isa_known": bool(isa["value"]),
        "vector_isa": isa["detail"],
    }
    write_atomically(folder / MANIFEST, json_text(told))
    say(f"sealed {len(files)} header files after {done['seconds']:.0f} s")


def link_into(place: isolation.Workplace, sealed: dict) -> None:
    """Give a workplace the sealed headers by links, in a folder whose lock files are its own."""
    if not sealed["files"]:
        return
    difference = cache.first_difference(sealed["files"], _sealed_now(sealed["folder"]))
    if difference:
        raise Unverified(
            f"{sealed['folder']}: of the sealed precompiled headers {difference}; "
            "remove the folder to build them again"
        )
    place.headers.mkdir(parents=True)
    for name in sealed["files"]:
        (place.headers / name).symlink_to(sealed["folder"] / name)


def change_since(place: isolation.Workplace, sealed: dict) -> str:
    """How the headers a process ended with differ from the sealed ones, empty if they do not."""
    found = cache.manifest(place.headers) if place.headers.exists() else {}
    return cache.first_difference(sealed["files"], found)


def _sealed_now(folder: Path) -> dict:
    return {name: entry for name, entry in cache.manifest(folder).items() if name != MANIFEST}
