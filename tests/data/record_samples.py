"""Record fresh processes of one cell as the samples that the statistics are proven on.

    python tests/data/record_samples.py 12

Measures e3_graph_breaks default cold at quick scale that many times, each in a process of its own, and
writes what they timed to tests/data/samples/e3_graph_breaks.csv: per process and case one line
with the first call, and one per round with the three passes of the steady window.
"""

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PROJECT = TESTS.parent
sys.path.insert(0, str(PROJECT / "scripts"))

from complab import evidence  # noqa: E402

EXPERIMENT, POLICY, CACHE = "e3_graph_breaks", "default", "cold"
SAMPLES = TESTS / "data" / "samples" / f"{EXPERIMENT}.csv"
METRICS = ("first_call", "steady_eager", "steady_compiled", "steady_control")
DIGITS = 6


def main(processes: int) -> None:
    """Measure and write ``processes`` samples; a process that fails is told and ends the recording."""
    lines = [line for process in range(1, processes + 1) for line in measured(process)]
    SAMPLES.parent.mkdir(exist_ok=True)
    with open(SAMPLES, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["process", "case", "round", *METRICS])
        writer.writerows(lines)
    print(f"{len(lines)} lines, {SAMPLES.stat().st_size / 1e3:.0f} kB in {SAMPLES}")


def measured(process: int) -> list[list]:
    """One fresh process's times, in seconds: per case the first call, then one line per round."""
    with tempfile.TemporaryDirectory(prefix="complab-samples-") as folder:
        out = Path(folder) / "cell"
        chosen = ["--policy", POLICY, "--cache", CACHE, "--scale", "quick", "--out", str(out)]
        subprocess.run([sys.executable, str(PROJECT / "scripts" / f"{EXPERIMENT}.py"), *chosen], check=True)
        path = out / evidence.EVIDENCE
        rows = evidence.csv_to_rows(path.read_text(encoding="utf-8"), path)
    values = {(row.case, row.metric, row.call): f"{row.value:.{DIGITS}g}" for row in rows}
    # In the order recorded; a metric that is told once has no round.
    keys = dict.fromkeys((row.case, "" if row.call is None else row.call) for row in rows if _timed(row))
    return [
        [
            process,
            case,
            call,
            *(values.get((case, metric, None if call == "" else call), "") for metric in METRICS),
        ]
        for case, call in keys
    ]


def _timed(row: evidence.Row) -> bool:
    return row.metric in METRICS


if __name__ == "__main__":
    main(int(sys.argv[1]))
