"""Diagnoses in tests: the whole command, on a lock of its own, with one probe a process or none at all."""

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from complab import cli, preflight
from complab.diagnose import cost
from complab.measure import bench, capture, dynamo, headers, isolation, runs

# A subject that needs no compiler; tests change a word of it or put lines before it.
SINE = """
import torch
def program(x):
    return torch.sin(x) + 1
def make():
    return program, {"backend": "eager"}
def calls():
    for _ in range(4):
        yield (torch.ones(2),), {}
"""


@dataclass
class Answer:
    """What the command answered: exit status, its ledger if it printed one, what it complained of."""

    status: int
    complaint: str
    ledger: dict = field(default_factory=dict)

    def verdict(self, level: str) -> str:
        return self.level(level)["verdict"]

    def evidence(self, level: str) -> str:
        return self.level(level)["evidence"]

    def level(self, level: str) -> dict:
        return next(each for each in self.ledger["levels"] if each["level"] == level)


def alone(monkeypatch, folder: Path) -> None:
    """Have a diagnosis wait for no other measurement, build no header, and time for a moment only."""
    monkeypatch.setattr(isolation, "LOCK", folder / "measuring.lock")
    monkeypatch.setattr(headers, "require", lambda plan, say: headers.NOTHING)
    monkeypatch.setattr(preflight, "missing_tools", lambda device: [])
    monkeypatch.setattr(cost, "STEADY_SECONDS", {False: 0.1, True: 0.1})


def without_processes(monkeypatch) -> None:
    """Have each probe run inside this process, from forgotten variants on."""
    monkeypatch.setattr(isolation, "run_process", _run_here)


def _run_here(name, request, place, python, environment, timeout, say) -> dict:
    runs.RESTLESS.clear()
    capture.hard_reset()
    torch.set_num_threads(request["config"]["threads"])
    dynamo.set_recompile_limit(request["config"]["recompile_limit"])
    with capture.capture_logs(graph_breaks=True, recompiles=True) as log, contextlib.ExitStack() as stack:
        stack.callback(capture.hard_reset)
        runs.timed(bench.Bench(request, log))
        return {"facts": {}, "log": log.getvalue()}


def answer(capsys, folder: Path, text: str, *flags: str) -> Answer:
    """The command's answer on a subject with this text, by default with --quick and one thread."""
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        cli.main(["diagnose", str(path), "--json", "--threads", "1", *(flags or ("--quick",))])
    told = capsys.readouterr()
    return Answer(end.value.code, told.err, json.loads(told.out) if told.out else {})
