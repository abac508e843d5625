"""Which precompiled headers does this environment's C++ compiler get, always the same ones?

Building them takes longer than most cold compiles and happens outside the cache folder. So they are
built once per environment, sealed with a manifest, and each measured process gets the sealed files.
Releases that keep them inside the cache folder (2.6) get an empty set.
"""

import contextlib
import fcntl
import json
import shutil
from pathlib import Path

from complab.config import PROJECT
from complab.errors import Unverified
from complab.evidence import json_text, write_atomically
from complab.measure import cache, isolation
from complab.staleness import digest_of

MANIFEST = "manifest.json"


def folder_for(fingerprint: dict) -> Path:
    """Where the headers of an environment lie."""
    return PROJECT / "results" / "headers" / digest_of(fingerprint)[:16]


def require(fingerprint: dict, settings: dict, python: str, scratch: str, timeout: int, say) -> dict:
    """Manifest and folder of the sealed headers, built first if this environment has none.

    ``settings`` is a cell's slice of the configuration: threads and device decide compiler flags.
    Raises Unverified if the sealed files are not those of their manifest.
    """
    folder = folder_for({**fingerprint, "threads": settings["threads"], "device": settings["device"]})
    with _exclusive(folder):
        if not (folder / MANIFEST).exists():
            _build(folder, settings, python, scratch, timeout, say)
    sealed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return {"folder": folder, "files": sealed["files"], "build_s": sealed["build_s"]}


@contextlib.contextmanager
def _exclusive(folder: Path):
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(folder: Path, settings: dict, python: str, scratch: str, timeout: int, say) -> None:
    say("building precompiled headers, once for this environment")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    isolation.prime(python)
    request = {"cell": {"experiment": "complab.measure.header_user", "policy": "default", "cache": "cold"}, "config": settings}
    with isolation.workplace(scratch) as place:
        environment = isolation.child_environment(place, settings["threads"])
        done = isolation.run_process("timed", request, place, python, environment, timeout, say)
        if place.headers.exists():
            for path in place.headers.iterdir():
                if path.is_file():
                    shutil.copyfile(path, folder / path.name)
                    (folder / path.name).chmod(0o444)
    files = {name: entry for name, entry in cache.manifest(folder).items() if name != MANIFEST}
    write_atomically(folder / MANIFEST, json_text({"files": files, "build_s": done["seconds"]}))
    say(f"sealed {len(files)} header files after {done['seconds']:.0f} s")


def link_into(place: isolation.Workplace, sealed: dict) -> None:
    """Give a workplace the sealed headers by links, in a folder whose lock files are its own."""
    if not sealed["files"]:
        return
    difference = cache.first_difference(sealed["files"], _sealed_now(sealed))
    if difference:
        raise Unverified(
            f"{sealed['folder']}: of the sealed precompiled headers {difference}; remove the folder to build them again"
        )
    place.headers.mkdir(parents=True)
    for name in sealed["files"]:
        (place.headers / name).symlink_to(sealed["folder"] / name)


def change_since(place: isolation.Workplace, sealed: dict) -> str:
    """How the headers a process ended with differ from the sealed ones, empty if they do not."""
    found = cache.manifest(place.headers) if place.headers.exists() else {}
    return cache.first_difference(sealed["files"], found)


def _sealed_now(sealed: dict) -> dict:
    return {name: entry for name, entry in cache.manifest(sealed["folder"]).items() if name != MANIFEST}
