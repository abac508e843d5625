"""What does the pipeline cost beside the measurements themselves?

    python tests/bench/overheads.py [--scale quick] [--rounds 5] [--fresh]

Prints three ratios, each of two things timed in the same minutes:
nothing to do against an empty workflow; all exhibits redrawn through the rules against one process that
draws them all; and, with --fresh, the wall time of a whole run against the sum of its cells' durations.
The run at that scale must be complete (--fresh makes one in a temporary copy).
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from complab import config  # noqa: E402

SNAKEMAKE = [str(Path(sys.executable).with_name("snakemake")), "--cores", "1", "--quiet", "all"]
COPIED = ("Snakefile", "config.yaml", "scripts", "workflow", "envs", "figures")

DRAW_ALL = """
import sys
from pathlib import Path

sys.path.insert(0, "scripts")
from complab import config
from complab.report import exhibits

settings = config.load(overrides={"scale": sys.argv[1]})
for name in settings["experiments"]:
    exhibits.draw(settings, name, Path("results"), Path("figures"))
"""


def seconds(argv: list[str], folder: Path) -> float:
    """Wall seconds of a command that must succeed."""
    start = time.perf_counter()
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    took = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed in {folder}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return took


def compare(
    label: str, ours: list[str], other: list[str], folder: Path, other_folder: Path, rounds: int
) -> None:
    """Time two commands in turn and print the ratio of their medians with the range of the pairs."""
    pairs = [(seconds(ours, folder), seconds(other, other_folder)) for _ in range(rounds)]
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = [left / right for left, right in pairs]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} in {rounds} pairs"
    print(f"{label}: {a:.2f} s / {b:.2f} s = {a / b:.2f} ({spread})")


def empty_workflow(folder: Path) -> Path:
    """A workflow with one finished target and nothing to do."""
    (folder / "Snakefile").write_text("rule all:\n    input: 'done'\n")
    (folder / "done").write_text("")
    return folder


def bench_fresh(scale: str, folder: Path) -> None:
    """Run the pipeline from nothing in a copy and relate its wall time to its cells' durations."""
    for name in COPIED:
        source = PROJECT / name
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, folder / name)
    took = seconds([*SNAKEMAKE, "--config", f"scale={scale}"], folder)
    records = [json.loads(path.read_text()) for path in folder.glob("results/*/*/*/*/*/provenance.json")]
    cells = sum(record["duration_s"] for record in records)
    label = f"wall of a fresh run / sum of its {len(records)} cells"
    print(f"{label}: {took:.0f} s / {cells:.0f} s = {took / cells:.2f}")


def main() -> None:
    """Run the benches and print one line each."""
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--scale", default="quick")
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--fresh", action="store_true", help="also time a whole run from nothing, in a copy")
    arguments = flags.parse_args()
    settings = config.load(overrides={"scale": arguments.scale})
    scale = ["--config", f"scale={arguments.scale}"]
    with tempfile.TemporaryDirectory() as folder:
        empty = empty_workflow(Path(folder))
        compare(
            "nothing to do / empty workflow",
            [*SNAKEMAKE, *scale],
            SNAKEMAKE,
            PROJECT,
            empty,
            arguments.rounds,
        )
    draws = [f"draw_{name}" for name in settings["experiments"]]
    through_rules = [*SNAKEMAKE, "-R", *draws, *scale, "--", f"figures/{settings.run}/manifest.json"]
    in_one = [sys.executable, "-c", DRAW_ALL, arguments.scale]
    compare(
        "redraw through the rules / in one process", through_rules, in_one, PROJECT, PROJECT, arguments.rounds
    )
    if arguments.fresh:
        with tempfile.TemporaryDirectory() as folder:
            bench_fresh(arguments.scale, Path(folder))


if __name__ == "__main__":
    main()
