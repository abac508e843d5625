"""How does the evidence of a run travel? One zip of every cell's files, sealed caches left out.

The zip is an RO-Crate (`complab.crate`) and needs nothing beside it: it also holds the run's attempts, the
ledgers of its subjects, what was planned, and the workflow with the measuring code as far as that is still
the code that ran. A bundle may come from anyone: nothing of it is written anywhere before all of it was
looked through.
"""

import hashlib
import io
import json
import re
import stat
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path

from complab import attempts, config, crate, evidence
from complab.diagnose import kept
from complab.errors import Unverified, UsageProblem
from complab.evidence import Record
from complab.staleness import SCRIPTS, code_digests

# Ordinary folders and names only: a member can then never leave the folder it is unpacked into.
NAME = re.compile(r"(?![.-])[A-Za-z0-9._-]+")
MEMBER = re.compile(rf"{NAME.pattern}(/{NAME.pattern})*")
# The earliest time a zip can tell; one fixed time makes equal evidence an equal zip.
EPOCH = (1980, 1, 1, 0, 0, 0)
# The zip ends with the hash of all before it: headers and padding are no part of any member's hash.
SEAL = re.compile(rb"sha256 [0-9a-f]{64}")
SEAL_BYTES, HASH_BYTES = 71, 64
# The record that ends a zip: signature, two disks, two counts, size and place of the directory, comment.
END = struct.Struct("<4s4H2LH")

# Far above any run, far below what a machine would notice.
MOST_ZIPPED = 256 * 2**20
MOST_UNPACKED = 2**30
MOST_MEMBERS = 20_000
LONGEST_NAME = 240
# Deflate reaches 1000; a small member may do as it likes.
MOST_RATIO, SMALL = 200, 2**20

# What lies beside the run's folder in a bundle; the measuring modules are those that the records name.
RESERVED = (crate.METADATA, crate.RUN_FACTS, SCRIPTS.name)
WORKFLOW_FILES = (crate.WORKFLOW, crate.CONFIG, "LICENSE", "workflow/rules/*.smk", "workflow/schemas/*.yaml")


def write(results: Path, run: str, target: Path) -> int:
    """Bundle a run, each cell verified first; returns how many cells it has.

    Raises UsageProblem if the run has no cell, Unverified if one does not verify.
    """
    records = _records(results, run)
    logs, told_by = _attempts(results / run, run)
    project = _project_files(records)
    if run in {name.partition("/")[0] for name in (*project, *RESERVED)}:
        raise UsageProblem(f"run '{run}' bears the name of something else in a bundle; give it another name")
    told = _cell_files(records, run) | logs | _subject_ledgers(results, run)
    sources = project | told | {crate.RUN_FACTS: _run_facts(records, run)}
    files = {name: _entry(_content(source)) for name, source in sources.items()}
    sources[crate.METADATA] = crate.describe(run, records, files, told_by).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    private = target.with_name(f".{target.name}.partial")
    try:
        _zip(private, sources)
        # What could not be read again, here or elsewhere, is no bundle.
        examine(private)
        private.replace(target)
    finally:
        private.unlink(missing_ok=True)
    return len(records)


def require_commits(results: Path, run: str) -> None:
    """UsageProblem unless each cell of a run that is handed on names the commit of its code, dirty or not."""
    for record in _records(results, run):
        if record.provenance["code"]["commit"] is None:
            raise UsageProblem(
                f"run '{run}': {record.cell} was measured outside a git repository, so nobody could find its "
                "code; measure the run in a clone"
            )


def _records(results: Path, run: str) -> list[Record]:
    found = NAME.fullmatch(run) and (results / run).glob(f"*/*/*/*/{evidence.PROVENANCE}")
    folders = sorted(path.parent for path in found or ())
    if not folders:
        raise UsageProblem(f"run '{run}' has no evidence; measure it, or name another with --run")
    return [evidence.verify(folder, run, evidence.cell_of(folder)) for folder in folders]


def _cell_files(records: list[Record], run: str) -> dict[str, Path]:
    """The files of every cell by their name in the bundle."""
    return {
        f"{run}/{record.cell.path}/{name}": record.folder / name
        for record in records
        for name in [*record.provenance["files"], evidence.PROVENANCE]
    }


def _subject_ledgers(results: Path, run: str) -> dict[str, Path]:
    """The ledger of every subject that was diagnosed: its exhibits are drawn from it alone."""
    found = (results / run / kept.FOLDER).glob(f"*/{evidence.LEDGER}")
    return {path.relative_to(results).as_posix(): path for path in sorted(found)}


def _attempts(folder: Path, run: str) -> tuple[dict[str, Path], dict[str, str]]:
    """The list of attempts with the logs it names, and which cell each log tells of."""
    events = attempts.read(folder)
    found = {f"{run}/{attempts.FILE}": folder / attempts.FILE} if events else {}
    told_by = {}
    for event in events:
        if digest := event.get("log"):
            log = folder / attempts.LOGS / f"{digest}.log"
            if not log.is_file() or evidence.sha256_of(log) != digest:
                raise Unverified(f"{log}: missing or altered, though {attempts.FILE} names it; restore it")
            name = f"{run}/{attempts.LOGS}/{log.name}"
            found[name], told_by[name] = log, event["cell"]
    return found, told_by


def _project_files(records: list[Record]) -> dict[str, Path]:
    """The workflow, and each measuring module that still is what the records say was run."""
    paths = [path for pattern in WORKFLOW_FILES for path in sorted(config.PROJECT.glob(pattern))]
    found = {path.relative_to(config.PROJECT).as_posix(): path for path in paths}
    ran: dict[str, set[str]] = {}
    for record in records:
        for name, digest in record.provenance["code"]["modules"].items():
            ran.setdefault(name, set()).add(digest)
    present = [
        SCRIPTS / name for name in sorted(ran) if MEMBER.fullmatch(name) and (SCRIPTS / name).is_file()
    ]
    now = code_digests(*present)
    return found | {
        f"{SCRIPTS.name}/{name}": SCRIPTS / name
        for name, digests in ran.items()
        if digests == {now.get(name)}
    }


def _run_facts(records: list[Record], run: str) -> bytes:
    """What a reader must know of the run beside its cells: its settings, and which cells were planned."""
    latest = max(records, key=lambda record: (record.provenance["ended"], record.cell))
    overrides = evidence.overrides_of(latest.provenance)
    settings = config.load(overrides=overrides)
    if settings.run != run:
        overrides["run"] = run
    planned = [str(cell) for cell in settings.cells()]
    return evidence.json_text({"run": run, "overrides": overrides, "planned": planned}).encode()


def _content(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def _entry(content: bytes) -> dict:
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def _zip(path: Path, sources: dict[str, Path | bytes]) -> None:
    """Zip the sources, the crate's metadata first, and seal the zip."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(sources, key=lambda name: (name != crate.METADATA, name)):
            content = _content(sources[name])
            member = zipfile.ZipInfo(name, EPOCH)
            member.create_system, member.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            member.compress_type = zipfile.ZIP_STORED if _looks_like_a_bomb(content) else zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
        archive.comment = b"sha256 " + b"0" * HASH_BYTES
    with open(path, "rb+") as stream:
        body = stream.read()[:-HASH_BYTES]
        stream.seek(-HASH_BYTES, io.SEEK_END)
        stream.write(hashlib.sha256(body).hexdigest().encode())


def _looks_like_a_bomb(content: bytes) -> bool:
    """Whether a member would shrink so far that a reader had to take it for one."""
    return len(content) > SMALL and len(zlib.compress(content)) * MOST_RATIO / 2 < len(content)


def unpack(source: Path, folder: Path) -> str:
    """Unpack a bundle below an empty folder and return its run's name.

    Raises Unverified for anything that is not such a bundle, before a file is written.
    """
    run, archive, members = examine(source)
    for member in members:
        path = folder / member.filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.read(member))
    return run


def install(source: Path, results: Path) -> str:
    """Put a bundle's run among the results, as a whole or not at all; returns its name.

    Raises UsageProblem if there is no such file or a run of that name is there, Unverified if the file is no
    bundle.
    """
    if not source.is_file():
        raise UsageProblem(f"{source}: is no file; give the zip that `complab bundle` wrote")
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=results) as private:
        run = unpack(source, Path(private))
        if (results / run).exists():
            raise UsageProblem(f"{results / run}: is there already; move it away to unpack {source}")
        (Path(private) / run).rename(results / run)
    return run


def facts(folder: Path) -> dict | None:
    """`run`, `overrides` and `planned` of an unpacked bundle; None where it is of a time without them."""
    path = Path(folder) / crate.RUN_FACTS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def examine(source: Path) -> tuple[str, zipfile.ZipFile, list[zipfile.ZipInfo]]:
    """The run's name, the open zip and its members, after all of it was read and found to be a bundle.

    It is held in memory, so that what is read later is what was looked through. Raises Unverified with
    what is wrong, and with which member.
    """
    try:
        data = _read(Path(source))
        archive = zipfile.ZipFile(io.BytesIO(data))
        members = archive.infolist()
        if problem := _problem_of_the_members(members, data):
            raise _Refused(problem)
        files = {member.filename: _entry_of(archive, member) for member in members}
        sealed = SEAL.fullmatch(archive.comment) is not None
        return _run_of(archive, files, sealed), archive, members
    except _Refused as refused:
        # Names in it are a stranger's: they may not steer a terminal.
        told = "".join(sign if sign.isprintable() else "?" for sign in str(refused))
        raise Unverified(f"{source}: not a bundle of a run ({told}); get it again from its source") from None
    # What the zip library has for bytes that are no zip: a bad directory, stream, name, method or number.
    except (
        OSError,
        ValueError,
        EOFError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
    ) as error:
        raise Unverified(
            f"{source}: unreadable as a bundle ({error}); get it again from its source"
        ) from error


class _Refused(Exception):
    """What is wrong with a bundle."""


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise _Refused(otherwise)


def _read(path: Path) -> bytes:
    """The bytes of a zip whose directory is of a size that can be looked at, and whose seal is whole."""
    with open(path, "rb") as stream:
        data = stream.read(MOST_ZIPPED + 1)
    _require(len(data) <= MOST_ZIPPED, f"larger than {MOST_ZIPPED} bytes")
    sealed = SEAL.fullmatch(data[-SEAL_BYTES:]) is not None
    begin = len(data) - END.size - (SEAL_BYTES if sealed else 0)
    _require(begin >= 0 and data[begin : begin + 4] == b"PK\x05\x06", "no zip, or cut off")
    _, disk, other, here, count, size, place, comment = END.unpack_from(data, begin)
    whole = begin + END.size + comment == len(data) and place + size == begin and here == count
    _require(whole and disk == other == 0, "its directory is not where a zip of one piece has it")
    _require(count <= MOST_MEMBERS, f"{count} members, more than {MOST_MEMBERS}")
    _require(size <= count * (46 + LONGEST_NAME), "its directory is larger than its members need")
    content = hashlib.sha256(data[:-HASH_BYTES]).hexdigest().encode()
    _require(not sealed or content == data[-HASH_BYTES:], "altered since it was bundled: its seal is broken")
    return data


def _problem_of_the_members(members: list[zipfile.ZipInfo], data: bytes) -> str:
    """What is wrong with a member by what the directory says of it, empty if nothing."""
    seen: dict[str, str] = {}
    for member in members:
        name = member.orig_filename
        if problem := _problem_of_a_member(member):
            return f"member {name!a} {problem}"
        if (twin := seen.get(name.casefold())) is not None:
            return f"member {name!a} is there twice" + (f", as {twin!a} too" if twin != name else "")
        seen[name.casefold()] = name
    for name in seen.values():
        parts = name.casefold().split("/")
        folders = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        if both := next((folder for folder in folders if folder in seen), ""):
            return f"member {seen[both]!a} is a file and a folder"
    if (unpacked := sum(member.file_size for member in members)) > MOST_UNPACKED:
        largest = max(members, key=lambda member: member.file_size)
        return f"{unpacked} bytes unpacked, more than {MOST_UNPACKED}; most of them in {largest.filename!a}"
    if sum(member.compress_size for member in members) > len(data):
        return "its members share bytes, as in a zip bomb"
    return ""


def _problem_of_a_member(member: zipfile.ZipInfo) -> str:
    name, kind = member.orig_filename, stat.S_IFMT(member.external_attr >> 16)
    if not MEMBER.fullmatch(name) or name != member.filename or len(name) > LONGEST_NAME:
        return "has a name that no file of a bundle has"
    if kind not in (0, stat.S_IFREG) or member.is_dir() or member.external_attr & 0x10:
        return "is a link, a folder or a device, not a file"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {member.compress_type}"
    if member.flag_bits & ~0x800:
        return "is encrypted or written in a way that no bundle is"
    if member.extra or member.comment:
        return "has hidden data beside its content"
    if member.file_size > SMALL and member.file_size > MOST_RATIO * member.compress_size:
        return f"unpacks to more than {MOST_RATIO} times its size, as in a zip bomb"
    return ""


def _entry_of(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> dict:
    """Hash and size of a member, read piece by piece and no further than its declared size."""
    digest, size = hashlib.sha256(), 0
    try:
        with archive.open(member) as stream:
            while piece := stream.read(2**20):
                size += len(piece)
                _require(size <= member.file_size, f"member '{member.filename}' is larger than declared")
                digest.update(piece)
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise _Refused(f"member '{member.filename}' cannot be read: {error or 'it is cut off'}") from error
    _require(size == member.file_size, f"member '{member.filename}' is smaller than declared")
    return {"sha256": digest.hexdigest(), "bytes": size}


def _run_of(archive: zipfile.ZipFile, files: dict[str, dict], sealed: bool) -> str:
    """The name of the run, if every file has its place in a bundle of it and the crate describes them."""
    if not sealed and not {crate.METADATA, crate.RUN_FACTS} & files.keys():
        # Of a time when a bundle was its cells and nothing else.
        run = next(iter(files), "").partition("/")[0]
        _require(run != "", "no files")
        _refuse_strays(files, run, bare=True)
        return run
    for name in (crate.METADATA, crate.RUN_FACTS):
        _require(name in files, f"without {name}")
    _require(sealed, "without its seal")
    run = _told_run(archive.read(crate.RUN_FACTS))
    _refuse_strays(files, run, bare=False)
    described = {name: entry for name, entry in files.items() if name != crate.METADATA}
    found = crate.problems(archive.read(crate.METADATA), run, described)
    _require(not found, next(iter(found), ""))
    return run


def _told_run(text: bytes) -> str:
    try:
        told = json.loads(text)
        planned = all(isinstance(cell, str) for cell in told["planned"])
        whole = NAME.fullmatch(told["run"]) and planned and isinstance(told["overrides"], dict)
    except (ValueError, TypeError, KeyError, RecursionError):
        whole = False
    _require(whole, f"its {crate.RUN_FACTS} tells no run")
    return told["run"]


def _refuse_strays(files: dict[str, dict], run: str, bare: bool) -> None:
    """Refuse a file that is none of a cell, of the attempts, of a subject or of the project."""
    places = [rf"{re.escape(run)}(/{NAME.pattern}){{3}}/[1-9][0-9]*/{NAME.pattern}"]
    if not bare:
        listed = rf"{re.escape(run)}/({re.escape(attempts.FILE)}|{attempts.LOGS}/[0-9a-f]{{64}}\.log)"
        places.append(rf"{re.escape(run)}/{kept.FOLDER}/{NAME.pattern}/{re.escape(evidence.LEDGER)}")
        places += [listed, rf"{crate.METADATA}|{crate.RUN_FACTS}|{crate.WORKFLOW}|{crate.CONFIG}|LICENSE"]
        places += [r"(workflow|scripts)/.+"]
    allowed = re.compile("|".join(f"({place})" for place in places))
    strays = sorted(name for name in files if not allowed.fullmatch(name))
    _require(not strays, f"member '{next(iter(strays), '')}' is no file of run {run}")
