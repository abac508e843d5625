"""How long does a diagnosis take, in all and against what it diagnoses?

    python tests/bench/diagnose_cost.py FOLDER [--threads 2] [--only NAME ...]

For each subject in the folder: wall seconds of `complab diagnose`, full and with --quick; those of its own
cold run (one process with an empty cache: import torch, make, every call compiled); and whether the full
diagnosis keeps to 4 own cold runs and 20 s. Then the medians. All compilers get the same sealed headers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "scripts"))

from complab import config  # noqa: E402
from complab.measure import headers, isolation  # noqa: E402
from complab.staleness import Plan  # noqa: E402

OWN_RUNS, SECONDS = 4, 20
MEDIANS = {"full": 60, "quick": 25}

# What the subject's own program does, no more: a call that raises ends it.
OWN_RUN = """
import sys

import torch

from complab.measure import dynamo, passes, subject

torch.set_num_threads(int(sys.argv[2]))
dynamo.skip_vector_isa_probes()
loaded = subject.load(sys.argv[1])
model, options = loaded.make()
run = torch.compile(model, **options)
for _, given, named in loaded.stream(model, lambda index: passes.seed_call(1234, index)):
    try:
        returned = run(*given, **named)
        if loaded.loss is not None:
            loaded.loss(returned).backward()
    except Exception as error:
        print(f"ended by {type(error).__name__}")
        break
"""


def own_run(path: Path, plan: Plan) -> float:
    """Wall seconds of the subject's own calls, compiled in a fresh process with nothing in its caches."""
    sealed = headers.require(plan, print)
    with isolation.workplace(plan.settings["scratch"]) as place:
        headers.link_into(place, sealed)
        threads = plan.settings["threads"]
        argv = [plan.settings.python, "-c", OWN_RUN, str(path), str(threads)]
        start = time.perf_counter()
        subprocess.run(
            argv,
            cwd=place.root,
            env=isolation.child_environment(place, threads, plan.device),
            capture_output=True,
            check=False,
            timeout=1200,
        )
        return time.perf_counter() - start


def diagnosis(path: Path, threads: int, *flags: str) -> tuple[float, str]:
    """Wall seconds of one diagnosis and its verdict in two words."""
    argv = [sys.executable, "-m", "complab.cli", "diagnose", str(path), "--json", "--threads", str(threads)]
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "scripts")}
    done = subprocess.run([*argv, *flags], env=environment, capture_output=True, text=True, check=False)
    took = time.perf_counter() - start
    try:
        told = json.loads(done.stdout)
    except ValueError:
        return took, f"status {done.returncode}: {done.stderr.strip()[-200:]}"
    return took, f"{told['first_failing_level'] or 'passes'}, {told['mechanism'] or 'no mechanism'}"


def main() -> None:
    """Print one line per subject and the medians; exit 1 if a limit is not kept."""
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("folder", type=Path, help="a folder of subjects: every .py in it")
    flags.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    flags.add_argument("--only", nargs="*", default=[], help="beginnings of the names to take")
    arguments = flags.parse_args()
    plan = Plan(config.load(overrides={"run": "by-hand", "threads": arguments.threads}))
    paths = sorted(arguments.folder.glob("*.py"))
    if arguments.only:
        paths = [path for path in paths if path.name.startswith(tuple(arguments.only))]
    # The first process of all reads torch from the disk.
    isolation.prime(plan.settings.python)
    kept, took = True, {"full": [], "quick": []}
    with isolation.host_lock(print):
        own = {path: own_run(path, plan) for path in paths}
    for path in paths:
        full, verdict = diagnosis(path, arguments.threads)
        quick, quickly = diagnosis(path, arguments.threads, "--quick")
        limit = OWN_RUNS * own[path] + SECONDS
        kept &= full <= limit
        took["full"].append(full)
        took["quick"].append(quick)
        within = "within" if full <= limit else "OVER"
        told = f"{path.stem:34} own {own[path]:5.1f} s  full {full:5.1f} s = {full / own[path]:4.1f} of it "
        told += f"({within} {limit:.0f} s)  quick {quick:5.1f} s  {verdict}"
        print(told + (f"; quick: {quickly}" if quickly != verdict else ""), flush=True)
    for name, limit in MEDIANS.items():
        middle = statistics.median(took[name])
        kept &= middle < limit
        print(f"median {name}: {middle:.1f} s of {limit} s in {len(paths)} subjects")
    sys.exit(not kept)


if __name__ == "__main__":
    main()
