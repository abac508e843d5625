"""Record real cells as the evidence that the fast tests draw exhibits from.

    python tests/data/record_evidence.py results/current-quick 'e1_*/*/*/*' 'e3_*/default/*/[123]' ...

Copies each matching cell whole, its sealed cache left out, into tests/data/evidence/RUN, which it
replaces. A cell that does not verify is not recorded. Keep the set below 2 MB: few cells, quick scale.
"""

import shutil
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS.parent / "scripts"))

from complab import evidence  # noqa: E402
from complab.config import Cell  # noqa: E402

EVIDENCE = TESTS / "data" / "evidence"
LARGEST = 2_000_000


def main(run_folder: Path, patterns: list[str]) -> None:
    """Replace the recorded evidence by the cells of a run that match the patterns."""
    folders = sorted({folder for pattern in patterns for folder in run_folder.glob(pattern)})
    records = [_verified(folder, run_folder.name) for folder in folders]
    if not records:
        sys.exit(f"{run_folder}: no cell matches {' '.join(patterns)}")
    shutil.rmtree(EVIDENCE, ignore_errors=True)
    total = 0
    for record in records:
        target = EVIDENCE / run_folder.name / record.cell.path
        target.mkdir(parents=True)
        for name in [*record.provenance["files"], evidence.PROVENANCE]:
            shutil.copyfile(record.folder / name, target / name)
            total += (target / name).stat().st_size
    print(f"{len(records)} cells, {total / 1e6:.2f} MB in {EVIDENCE}")
    if total > LARGEST:
        sys.exit(f"that is more than {LARGEST / 1e6:g} MB; record fewer cells")


def _verified(folder: Path, run: str) -> evidence.Record:
    experiment, policy, cache, replicate = folder.parts[-4:]
    return evidence.verify(folder, run, Cell(experiment, policy, cache, int(replicate)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
