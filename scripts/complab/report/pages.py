"""What does tlparse make of a cell's structured trace? A folder of pages, the same to the byte each time.

The pages load nothing: they link to each other, and a break's page to PyTorch's site of graph breaks. Left
out is what would only double the evidence: the trace itself, and the events of a timeline, which need a
viewer on a site.
"""

import html
import subprocess
import sys
import tempfile
from pathlib import Path

from complab import evidence, structured
from complab.errors import EnvironmentProblem, Problem, one_line
from complab.evidence import Record
from complab.report import names, tables
from complab.report.gather import Gathered

# What tlparse writes besides the pages and no page links to.
NO_PAGES = ("raw.log", "raw.jsonl", "chromium_events.json")


def draw(gathered: Gathered) -> dict[str, bytes]:
    """The files of the folder by name, its index among them; a notice if no measured cell has a trace."""
    traced = [record for record in gathered.determinate if evidence.TRACE_LOG in record.provenance["files"]]
    index = names.pages_index(gathered.experiment)
    if gathered.failed or not traced:
        return {index: _notice(gathered).encode("utf-8")}
    folder = Path(index).parent
    return {(folder / name).as_posix(): content for name, content in _parsed(traced[0]).items()}


def _parsed(record: Record) -> dict[str, bytes]:
    text = (record.folder / evidence.TRACE_LOG).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="complab-pages-") as scratch:
        # By the same name each time; without a path of this machine on any page.
        trace = Path(scratch, evidence.TRACE_LOG)
        kept = structured.rewritten(text, lambda told: told, lambda entry: "chromium_event" not in entry.told)
        trace.write_text(kept, encoding="utf-8", newline="\n")
        out = Path(scratch, "pages")
        argv = [_tlparse(), "--no-browser", "--strict", "-o", str(out), str(trace)]
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", check=False, cwd=scratch
        )
        if done.returncode != 0:
            raise Problem(
                f"{record.folder / evidence.TRACE_LOG}: tlparse cannot read it: {one_line(done.stderr, 200)}"
            )
        files = sorted(path for path in out.rglob("*") if path.is_file() and path.name not in NO_PAGES)
        return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def _tlparse() -> str:
    """The program beside the running interpreter, so that the lock's release draws."""
    program = Path(sys.executable).parent / "tlparse"
    if not program.is_file():
        raise EnvironmentProblem(f"{program}: missing, and the trace is drawn by it; install the lock again")
    return str(program)


def _notice(gathered: Gathered) -> str:
    lines = [tables.counts(gathered), *tables.failures(gathered)]
    told = "".join(f"<p>{html.escape(line)}</p>\n" for line in lines)
    return (
        f'<!DOCTYPE html>\n<meta charset="utf-8">\n<h1>{html.escape(gathered.title)}: not drawn</h1>\n{told}'
    )


def link(gathered: Gathered) -> str:
    """A line of Markdown that leads from a table to the pages."""
    return f"\n[The structured trace, page by page]({names.pages_index(gathered.experiment)})\n"
