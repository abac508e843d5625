"""Trouble that a test makes for what it starts: a small disk, permissions that count, missing tools."""

import contextlib
import ctypes
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

PR_CAPBSET_DROP = 24
# Reading and writing whatever the permissions say.
OVERRIDES = {"CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2}


def bound_by_permissions() -> None:
    """For `preexec_fn`: have permissions count for root as they do for anyone else."""
    if os.geteuid() == 0:
        for number in OVERRIDES.values():
            if ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
                raise OSError("root's right to ignore permissions could not be given up")


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[dict]:
    """A folder on a disk of so many bytes; yields the options that a process in trouble is started with.

    Where nothing can be mounted, those options let no file grow beyond the size: the same write fails,
    with another reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        yield {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))}
        return
    try:
        yield {}
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


NO_ROOM = ("No space left on device", "File too large")


def path_without(folder: Path, *missing: str) -> str:
    """A PATH with every program of this machine's but those: links in ``folder``."""
    folder.mkdir()
    for place in os.environ["PATH"].split(":"):
        for program in Path(place).iterdir() if Path(place).is_dir() else []:
            if program.name not in missing and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return str(folder)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Take the permission to write from a folder and all below it."""
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    try:
        yield
    finally:
        for path in paths:
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o200)
