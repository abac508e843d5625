"""Stands for the measured process: writes at once what a real one would tell, and measures nothing.

`python stub_child.py CONTROL REQUEST` needs the standard library only. Files in the folder CONTROL say what
goes wrong: `fail` (the process raises), `temporary` (a file whose text is told as the TMPDIR it used),
`rows` (how many further rows it tells).
"""

import json
import os
import sys
from pathlib import Path

# What Inductor leaves of one graph on a CPU.
KERNEL = "2i/c2id3iuk.main.so"
CACHE = {
    "fxgraph/5w/f5wp4s6p/bfwnsn3o": b"entry" * 20,
    "aotautograd/a52omrwr/3742jac3": b"entry" * 20,
    "bv/cbvemf3m.py": b"print('wrapper')\n",
    "2i/c2id3iuk.main.cpp": b"// kernel\n",
    KERNEL: b"\x7fELF kernel" * 20,
}
HEADER = "cabcdef.h.gch"


def main(control: Path, wanted: Path) -> None:
    folder, request = wanted.parent, json.loads(wanted.read_text(encoding="utf-8"))
    told = {**request["cell"], "process": request["process"]}
    print("stub of", request["process"], flush=True)
    if (control / "fail").exists():
        raise RuntimeError("planted failure")
    cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    hit, spawned = _use(cache, told["cache"])
    rows = [] if told["experiment"] != "complab.measure.header_user" else [_header()]
    if not rows:
        rows = [_row("sum", "steady_eager", (index + 1) / 3, "s", index) for index in range(4)]
        rows.append(_row("sum", "within_tolerance", 1, "1", detail="größe, „3,5“; naïve"))
        rows += [
            _row("more", "calls_made", index, "calls", index)
            for index in range(int(_text(control, "rows") or 0))
        ]
    counters = _counters(hit) if told["cache"] != "none" else {}
    facts = {
        "torch": _torch(),
        "threads": request["config"]["threads"],
        "capabilities": {"fx_graph_cache": True, "aot_autograd_cache": True, "precompiled_headers": True},
        "counters": counters,
        "graphs_captured": 1 if counters else 0,
        "cacheless": {"graphs": 0, "unfinished": 0},
        "outputs": "0" * 64,
        "spawned": spawned,
        "modules": [],
        "temporary_folder": _text(control, "temporary") or os.environ["TMPDIR"],
    }
    (folder / "torch.log").write_text("", encoding="utf-8")
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _use(cache: Path, state: str) -> tuple[bool, list[list[str]]]:
    """Use the cache as Inductor does: hit on what is there, else write it, the kernel by a compiler."""
    if state == "none":
        return False, []
    hit = all((cache / name).exists() for name in CACHE)
    for name, content in {} if hit else CACHE.items():
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_bytes(content)
    return hit, [] if hit else [["g++", "x.cpp", "-shared", "-o", str(cache / KERNEL)]]


def _header() -> dict:
    folder = Path(os.environ["TMPDIR"]) / "torchinductor_complab" / "precompiled_headers"
    folder.mkdir(parents=True)
    (folder / HEADER).write_bytes(b"precompiled" * 20)
    return _row("", "vector_isa_known", 1, "1", detail="avx2 probed, avx2 unprobed")


def _row(case: str, metric: str, value: float, unit: str, call: int | None = None, detail: str = "") -> dict:
    return {"case": case, "call": call, "metric": metric, "value": value, "unit": unit, "detail": detail}


def _counters(hit: bool) -> dict:
    if hit:
        found = {"inductor": {"fxgraph_cache_hit": 1}, "aot_autograd": {"autograd_cache_hit": 1}}
    else:
        found = {
            "inductor": {"fxgraph_cache_miss": 1},
            "aot_autograd": {"autograd_cache_miss": 1, "autograd_cache_saved": 1},
        }
    found["aot_autograd"] |= {"total": 1, "ok": 1}
    return found


def _torch() -> str:
    from importlib.metadata import version

    return version("torch")


def _text(control: Path, name: str) -> str:
    path = control / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
