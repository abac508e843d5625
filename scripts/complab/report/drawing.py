"""From what were the exhibits of a run drawn, beside its evidence? Their manifest tells, for audit to ask."""

import hashlib
from pathlib import Path

from complab import attempts
from complab.config import PROJECT, Settings
from complab.report import names
from complab.staleness import SCRIPTS, code_digests, digest_of

# The modules from which all that draws is reached.
DRAWING = ("exhibits", "ledgers", "claims_table", "numbers", "page", "subjects")
# Choices of the configuration that no number depends on.
NO_CHOICE = ("python", "scratch", "record_identity")


def drawn_by(settings: Settings) -> dict[str, str]:
    """What draws the exhibits, as two digests: the code, and what the configuration declares of them.

    Comments and docstrings do not count as code.
    """
    modules = (SCRIPTS / "complab" / "report" / f"{name}.py" for name in DRAWING)
    return {"code": digest_of(code_digests(*modules)), "declared": _declared(settings)}


def _declared(settings: Settings) -> str:
    keys = ("title", "exhibit", "policies", "replicates", "once")
    entries = {name: [entry[key] for key in keys] for name, entry in settings["experiments"].items()}
    files = ("workflow/claims.yaml", "workflow/schemas/claims.schema.yaml", "figures/complab.mplstyle")
    texts = [(PROJECT / name).read_text(encoding="utf-8") for name in (*files, *names.PAGE_PARTS)]
    return digest_of([entries, settings["noise"], settings["ledgers"], sorted(settings["subjects"]), *texts])


def attempts_so_far(folder: Path, lines: int | None = None) -> dict:
    """How many lines the run's list of attempts has, or the first ``lines`` of it, and their SHA-256."""
    path = Path(folder) / attempts.FILE
    content = path.read_bytes() if path.is_file() else b""
    told = content.splitlines(keepends=True)[:lines]
    return {"lines": len(told), "sha256": hashlib.sha256(b"".join(told)).hexdigest()}
