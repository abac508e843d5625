"""In which state was the cache really? Manifests, the sealed cold cache, and the verdict.

Counters alone prove neither cold nor warm: a shared object can be reused under missing counters and
rebuilt under hits. So the verdict needs counters, manifests and the compiler processes to agree.
"""

import hashlib
import shutil
import tarfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from complab.errors import Unverified, counted, one_line

COLD = "cold-proven"
WARM = "warm-proven"
INDETERMINATE = "indeterminate"
NOT_APPLICABLE = "not-applicable"

# Suffixes of files in the cache that only a compiler or an assembler makes.
BINARIES = (".so", ".cubin", ".hsaco")
ERRORS = ("_bypass", "_write_error", "_pickle_error", "_guard_miss")


def manifest(folder: Path) -> dict[str, dict]:
    """``{path: {"sha256", "bytes"}}`` of each file below a folder, lock files excepted."""
    folder = Path(folder)
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not _is_lock(name):
            with open(path, "rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            found[name] = {"sha256": digest, "bytes": path.stat().st_size}
    return found


def _is_lock(name: str) -> bool:
    return name.endswith(".lock") or "locks" in name.split("/")[:-1]


def root_hash(entries: dict[str, dict]) -> str:
    """One hex SHA-256 over the paths and digests of a manifest."""
    lines = "".join(f"{entry['sha256']}  {name}\n" for name, entry in sorted(entries.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def summary(entries: dict[str, dict]) -> dict:
    """Root hash, file count and bytes of a manifest."""
    size = sum(entry["bytes"] for entry in entries.values())
    return {"root": root_hash(entries), "files": len(entries), "bytes": size}


def first_difference(expected: dict[str, dict], found: dict[str, dict]) -> str:
    """The first path in which two manifests differ and how, empty if they are equal."""
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} is new"
        if found[name]["bytes"] != expected[name]["bytes"]:
            return f"{name} has {found[name]['bytes']} bytes, not {expected[name]['bytes']}"
        if found[name]["sha256"] != expected[name]["sha256"]:
            return f"{name} was altered"
    return ""


def seal(folder: Path, tar: Path) -> dict[str, dict]:
    """Write the files of a cache folder to a tar without times or owners; returns their manifest."""
    entries = manifest(folder)
    with tarfile.open(tar, "w") as archive:
        for name in entries:
            # Not gettarinfo: of two hard links it would write the second as a link.
            info = tarfile.TarInfo(name)
            info.size = entries[name]["bytes"]
            with open(folder / name, "rb") as stream:
                archive.addfile(info, stream)
    return entries


def unpack(tar: Path, expected: dict[str, dict], folder: Path) -> None:
    """Unpack a sealed cache into an empty folder, only if it holds exactly the expected files.

    Everything is compared before anything is written, since a cache is code that torch would load.
    Raises Unverified naming the first file that is missing, added or altered.
    """
    found = {}
    try:
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if not member.isfile() or member.name in found:
                    raise Unverified(
                        f"{tar}: member '{member.name}' is not a plain file; measure the cold cell again"
                    )
                if path.is_absolute() or ".." in path.parts or path.as_posix() != member.name:
                    raise Unverified(
                        f"{tar}: member '{member.name}' is outside the folder; measure the cold cell again"
                    )
                digest = hashlib.file_digest(archive.extractfile(member), "sha256").hexdigest()
                found[member.name] = {"sha256": digest, "bytes": member.size}
    except FileNotFoundError:
        raise Unverified(f"{tar}: the sealed cache is missing; measure the cold cell again") from None
    except (tarfile.TarError, OSError, EOFError, AttributeError) as error:
        raise Unverified(
            f"{tar}: the sealed cache is damaged ({one_line(error)}); measure the cold cell again"
        ) from error
    difference = first_difference(expected, found)
    if difference:
        raise Unverified(f"{tar}: in the sealed cache {difference}; measure the cold cell again")
    with tarfile.open(tar, "r:") as archive:
        # Member by member, since each was found to be a plain file with a path of its own below the folder.
        for member in archive:
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.extractfile(member) as packed, path.open("xb") as unpacked:
                shutil.copyfileobj(packed, unpacked)


@dataclass(frozen=True)
class Observed:
    """What three independent witnesses say about one timed process.

    ``before``, ``after``: manifests of the cache folder. ``headers_changed``: how the precompiled
    headers differ afterwards, empty if they do not. ``counters``: Dynamo's counters at exit.
    ``graphs``: graphs captured. ``spawned``: argument lists of the processes it started.
    ``capabilities``: of the release. ``foreign``: files written outside the cache folder.
    ``cacheless``: of the graphs and of AOTAutograd's unfinished ones, those whose backend has no cache.
    """

    before: dict[str, dict]
    after: dict[str, dict]
    headers_changed: str
    counters: dict[str, dict[str, int]]
    graphs: int
    spawned: list[list[str]]
    capabilities: dict[str, bool]
    cache_folder: str
    foreign: list[str] = field(default_factory=list)
    cacheless: dict[str, int] = field(default_factory=dict)

    def count(self, category: str, key: str) -> int:
        """A counter's value, 0 if it was never raised."""
        return self.counters.get(category, {}).get(key, 0)

    def restarted(self) -> int:
        """Graphs AOTAutograd began and did not finish, because Dynamo restarted its analysis of the frame.

        Such an attempt has looked its graph up and missed, and saves nothing, cold or warm.
        """
        unfinished = self.count("aot_autograd", "total") - self.count("aot_autograd", "ok")
        return max(0, unfinished - self.cacheless.get("unfinished", 0))

    def cached_graphs(self) -> int:
        """Graphs given to a backend that looks them up: one that only captures has no cache to ask."""
        return self.graphs - self.cacheless.get("graphs", 0)

    def built(self) -> set[str]:
        """Paths below the cache folder that compiler processes were told to write."""
        return {
            Path(target).relative_to(self.cache_folder).as_posix()
            for target in map(output_of, self.spawned)
            if target and Path(target).is_relative_to(self.cache_folder) and target.endswith(BINARIES)
        }

    def assemblers(self) -> int:
        """Number of device assembler processes (ptxas)."""
        return sum(map(is_assembler, self.spawned))

    def built_elsewhere(self) -> int:
        """Processes that made a binary which Triton then moves into the cache under another name."""
        outside = [
            target
            for target in map(output_of, filter(lambda words: not is_assembler(words), self.spawned))
            if target.endswith(BINARIES) and not Path(target).is_relative_to(self.cache_folder)
        ]
        # Assemblers are counted by their name, not by what they write, so that none is counted twice.
        return len(outside) + self.assemblers()

    def new_binaries(self) -> set[str]:
        """Binaries in the cache that were not there before."""
        return {name for name in self.after.keys() - self.before.keys() if name.endswith(BINARIES)}


def first_word(words: list[str]) -> str:
    """The program of an argument list, or of a command line given as one string."""
    return (words[0].split() or [""])[0] if words else ""


def is_assembler(words: list[str]) -> bool:
    """Whether a process is a device assembler at work; asked for its version it assembles nothing."""
    return Path(first_word(words)).name.startswith("ptxas") and bool(output_of(words))


def output_of(words: list[str]) -> str:
    """The file a compiler call writes (after ``-o``), empty if it has none or only preprocesses."""
    parts = words[-1].split() if len(words) == 1 or words[1:2] == ["-c"] else words
    if "-o" not in parts or "-E" in parts:
        return ""
    position = parts.index("-o") + 1
    return parts[position] if position < len(parts) else ""


def judge(
    declared: str, seen: Observed, sealed: dict[str, dict] | None = None, compiles: bool = True
) -> tuple[str, list[str]]:
    """Verdict on a declared cache state and the reasons it rests on.

    cold needs: an empty folder before; every lookup a miss, or a hit on an entry this process wrote;
    every graph accounted for; nothing bypassed; each new binary made by a compiler process that was
    seen. warm needs: exactly the sealed files before and after; every lookup a hit; no compiler
    process that built a binary. Both need unchanged precompiled headers, no file outside the cache
    folder, no remote cache and no saved profile (PGO). none needs that nothing was written to the cache
    and, where nothing ``compiles``, that no graph was captured: capture-only backends keep no cache.
    Anything else is indeterminate, with the objections as reasons.
    """
    if declared == "none":
        objections = (
            [] if compiles or not seen.graphs else ["something was compiled in a cell that compiles nothing"]
        )
        if seen.after:
            objections.append(f"{min(seen.after)} was written to the cache of a cell without one")
        return (INDETERMINATE, objections) if objections else (NOT_APPLICABLE, [])
    objections = _common_objections(seen)
    objections += _cold_objections(seen) if declared == "cold" else _warm_objections(seen, sealed)
    if objections:
        return INDETERMINATE, objections
    return (COLD if declared == "cold" else WARM), [_support(declared, seen)]


def _support(declared: str, seen: Observed) -> str:
    hits, misses = seen.count("inductor", "fxgraph_cache_hit"), seen.count("inductor", "fxgraph_cache_miss")
    restarts = f", {seen.restarted()} restarted" if seen.restarted() else ""
    return (
        f"{declared}: {counted(seen.cached_graphs(), 'graph')}{restarts}, FX cache {counted(hits, 'hit')} "
        f"{counted(misses, 'miss')}, {counted(len(seen.before), 'file')} before, {len(seen.after)} after, "
        f"{counted(len(seen.built()), 'binary')} built"
    )


def _common_objections(seen: Observed) -> list[str]:
    objections = []
    if not seen.capabilities.get("fx_graph_cache"):
        objections.append("the FX graph cache is off, so counters cannot tell its state")
    for category in ("inductor", "aot_autograd"):
        for key, value in sorted(seen.counters.get(category, {}).items()):
            if "cache" in key and (key.endswith(ERRORS) or "remote" in key) and value:
                objections.append(f"counter {category}.{key} is {value}")
    if seen.headers_changed:
        objections.append(f"precompiled headers changed: {seen.headers_changed}")
    if seen.foreign:
        objections.append(f"files were written outside the cache folder, {seen.foreign[0]} among them")
    if profiles := [name for name in seen.after if "code_state_" in name]:
        objections.append(f"a saved profile (PGO) was used: {profiles[0]}")
    if any(name.startswith("bisect/") for name in seen.after):
        objections.append("a bisect folder in the cache changes what is compiled")
    if seen.cached_graphs() == 0:
        objections.append("nothing was compiled")
    return objections


def _lookups(seen: Observed) -> list[tuple[str, int, int]]:
    """Name, hits and misses of each cache this release counts; lookups of restarted attempts left out."""
    hits, misses = seen.count("inductor", "fxgraph_cache_hit"), seen.count("inductor", "fxgraph_cache_miss")
    told = [("FX graph", hits, misses)]
    if seen.capabilities.get("aot_autograd_cache"):
        hits = seen.count("aot_autograd", "autograd_cache_hit")
        misses = seen.count("aot_autograd", "autograd_cache_miss") - seen.restarted()
        told.append(("AOTAutograd", hits, misses))
    return told


def _cold_objections(seen: Observed) -> list[str]:
    objections = []
    if seen.before:
        objections.append(
            f"the cache folder held {counted(len(seen.before), 'file')} before the process started"
        )
    for name, hits, misses in _lookups(seen):
        if misses <= 0:
            objections.append(f"the {name} cache counts no miss")
        if hits + misses < seen.cached_graphs():
            lookups = counted(hits + misses, "lookup")
            graphs = counted(seen.cached_graphs(), "graph")
            objections.append(f"the {name} cache counts {lookups} for {graphs}")
        saved = seen.count("aot_autograd", "autograd_cache_saved")
        if name == "AOTAutograd" and saved != misses:
            objections.append(
                f"the {name} cache saved {counted(saved, 'entry')} for {counted(misses, 'miss')}"
            )
    unexplained = seen.new_binaries() - seen.built()
    if len(unexplained) > seen.built_elsewhere():
        objections.append(
            f"{counted(len(unexplained), 'new binary')}, {min(unexplained)} among them, "
            f"but {counted(seen.built_elsewhere(), 'compiler process')} that could have made them"
        )
    if vanished := seen.built() - seen.after.keys():
        objections.append(f"a compiler process wrote {min(vanished)}, which is not in the cache")
    if (
        not seen.new_binaries()
        and seen.cached_graphs()
        and not any(name.endswith(".py") for name in seen.after)
    ):
        objections.append("no generated code was written to the cache")
    return objections


def _warm_objections(seen: Observed, sealed: dict[str, dict] | None) -> list[str]:
    objections = []
    if sealed is None:
        return ["there is no sealed cold cache to compare with"]
    if difference := first_difference(sealed, seen.before):
        objections.append(f"before the start the cache was not the sealed one: {difference}")
    if difference := first_difference(seen.before, seen.after):
        objections.append(f"the cache changed: {difference}")
    for name, hits, misses in _lookups(seen):
        if misses:
            objections.append(f"the {name} cache counts {counted(misses, 'miss')}")
        if hits < seen.cached_graphs():
            graphs = counted(seen.cached_graphs(), "graph")
            objections.append(f"the {name} cache counts {counted(hits, 'hit')} for {graphs}")
    if built := seen.built():
        objections.append(
            f"{counted(len(built), 'compiler process')} built binaries, {min(built)} among them"
        )
    if seen.built_elsewhere():
        objections.append(
            f"{counted(seen.built_elsewhere(), 'compiler or assembler process')} made binaries elsewhere"
        )
    return objections
