"""Records structured traces of one torch release: `PYTHON tests/data/traces/record.py` for each release.

PYTHON needs torch and a compiler. The trace is of three small functions, and is kept without what tells
of times only and without most of the longest payloads, under sums that fit what is kept.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parents[2] / "scripts"

PROGRAM = """
import torch

def with_break(x):
    product = torch.sin(x) * x
    if x.sum().item() > 0:
        product = product * 2
    return torch.cos(product)

def break_in_loop(x):
    for step in range(3):
        x = torch.sin(x)
        if step == 1:
            print(x.sum().item())
    return x

def stream(x):
    return torch.relu(x) * 2

def same_as_stream(x):
    return torch.relu(x) * 2

with torch.no_grad():
    for function, calls in (
        (with_break, [torch.ones(4, 4)] * 2),
        (break_in_loop, [torch.ones(4, 4)]),
        (stream, [torch.ones(length, 3) for length in (4, 5, 6, 4)]),
        (same_as_stream, [torch.ones(4, 3)]),
    ):
        compiled = torch.compile(function, dynamic=False)
        for x in calls:
            compiled(x)
"""
DROPPED = {"chromium_event", "compilation_metrics", "describe_storage", "describe_tensor", "describe_source"}
LONGEST = 4000


def main() -> None:
    """Write PROGRAM's trace under this interpreter to a folder named after its torch release."""
    sys.path.insert(0, str(SCRIPTS))
    from complab import structured

    with tempfile.TemporaryDirectory() as scratch:
        program, traces = Path(scratch, "program.py"), Path(scratch, "trace")
        program.write_text(PROGRAM, encoding="utf-8")
        told = {
            "TORCH_TRACE": str(traces),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(scratch, "cache")),
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
        }
        subprocess.run([sys.executable, str(program)], env=os.environ | told, check=True)
        asked = "import torch; print(torch.__version__.split('+')[0])"
        release = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
        (trace,) = traces.glob("*.log")
        text = trace.read_bytes().decode("utf-8")

        def change(kept: str) -> str:
            return _shortened(kept.replace(scratch, "/recorded").replace(sys.prefix, "/env"))

        kept = structured.rewritten(text, change, lambda entry: not DROPPED & set(entry.told))
    folder = HERE / release.stdout.strip()
    folder.mkdir(exist_ok=True)
    (folder / "trace.log").write_text(kept, encoding="utf-8", newline="\n")
    print(folder / "trace.log", len(kept))


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    try:
        told = json.loads(text)
    except ValueError:
        return text[:LONGEST]
    return json.dumps({key: value for key, value in told.items() if len(json.dumps(value)) < LONGEST})


if __name__ == "__main__":
    main()
