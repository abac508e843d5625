"""How does the evidence of a run travel? One zip of every cell's files, sealed caches left out."""

import re
import zipfile
from pathlib import Path

from complab import evidence
from complab.errors import Unverified, UsageProblem

# Ordinary folders and names only: a member can then never leave the folder it is unpacked into.
MEMBER = re.compile(r"(?!\.)[A-Za-z0-9._-]+(/(?!\.)[A-Za-z0-9._-]+)*")
# The earliest time a zip can tell; one fixed time makes equal evidence an equal zip.
EPOCH = (1980, 1, 1, 0, 0, 0)


def write(results: Path, run: str, target: Path) -> int:
    """Zip the cells of a run, each verified first; returns how many.

    Raises UsageProblem if the run has no cell, Unverified if one does not verify.
    """
    folders = sorted(path.parent for path in (results / run).glob(f"*/*/*/*/{evidence.PROVENANCE}"))
    if not folders:
        raise UsageProblem(f"run '{run}' has no evidence; measure it, or name another with --run")
    target.parent.mkdir(parents=True, exist_ok=True)
    private = target.with_name(f".{target.name}.partial")
    try:
        with zipfile.ZipFile(private, "w", zipfile.ZIP_DEFLATED) as archive:
            for folder in folders:
                record = evidence.verify(folder, run, evidence.cell_of(folder))
                for name in sorted([*record.provenance["files"], evidence.PROVENANCE]):
                    member = zipfile.ZipInfo(f"{run}/{record.cell.path}/{name}", EPOCH)
                    member.compress_type = zipfile.ZIP_DEFLATED
                    member.external_attr = 0o644 << 16
                    archive.writestr(member, (folder / name).read_bytes())
        private.replace(target)
    finally:
        private.unlink(missing_ok=True)
    return len(folders)


def unpack(source: Path, folder: Path) -> str:
    """Unpack a bundle below an empty folder and return its run's name.

    Raises Unverified for anything that is not such a bundle, before a file is written.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            strange = next((name for name in names if not MEMBER.fullmatch(name)), None)
            runs = {name.split("/")[0] for name in names}
            if strange is not None or len(runs) != 1 or len(set(names)) != len(names):
                raise Unverified(f"{source}: not a bundle of one run ({strange or 'member names'})")
            for member in members:
                path = folder / member.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(member))
    except (OSError, zipfile.BadZipFile) as error:
        raise Unverified(f"{source}: unreadable as a bundle ({error})") from error
    return runs.pop()
