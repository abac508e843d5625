"""What can an audit find, how bad is it, and which exit status goes with it? Classes from good to bad."""

from dataclasses import dataclass

FRESH, STALE, UNPROVEN, MISSING, TAMPERED = CLASSES = ("fresh", "stale", "unproven", "missing", "tampered")
EXIT = {FRESH: 0, STALE: 5, UNPROVEN: 6, MISSING: 7, TAMPERED: 8}


@dataclass(frozen=True)
class Finding:
    """What is wrong with a file, in one line: ``kind`` is one of CLASSES."""

    file: str
    kind: str
    told: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.file}: {self.told}"
