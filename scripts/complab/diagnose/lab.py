"""How does a diagnosis run its probes? Each in an isolated process, and what it noted comes back by run.

The same cell runner as for experiments: private folders, an environment of named variables, sealed headers,
the machine's measuring lock. A process that dies or hangs keeps what it had noted.
"""

import contextlib
import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from complab.diagnose.judgement import COMPILED, MARK
from complab.errors import EnvironmentProblem, Problem, one_line
from complab.measure import headers, isolation

SCRIPT = "complab.measure.runs"
# Torch's own default in every supported release; a subject that sets another one does so when it is executed.
RECOMPILE_LIMIT = 8
SEED = 1234


@dataclass
class Noted:
    """What one run noted: its lines in order, and whether it came to its end."""

    lines: list[dict] = field(default_factory=list)
    ended: bool = False

    @property
    def calls(self) -> list[dict]:
        return [line for line in self.lines if "call" in line]

    def first(self, key: str, otherwise=None):
        """The value of the first line that has the key."""
        return next((line[key] for line in self.lines if key in line), otherwise)

    def end_with(self, error: dict) -> None:
        """Note an error in the compiled call that was under way when the process ended."""
        if not self.ended and not self.first("streamed"):
            self.lines.append({"call": len(self.calls), "error": {COMPILED: error}})

    def all(self, key: str) -> list:
        return [line[key] for line in self.lines if key in line]


@dataclass
class Process:
    """One finished process: its runs by label, how it ended, what it cost.

    ``unusable`` is what is wrong with the subject itself, ``fault`` what this project's own code raised, and
    ``died`` how the process ended where it did not come to its end.
    """

    runs: dict[str, Noted]
    unusable: str = ""
    fault: str = ""
    died: str = ""
    timed_out: bool = False
    facts: dict = field(default_factory=dict)
    log: str = ""
    seconds: float = 0.0

    @property
    def hung(self) -> bool:
        """Whether most of the time until it was stopped went by in silence, not in call after call."""
        told = [line["at"] for noted in self.runs.values() for line in noted.lines if "at" in line]
        return self.timed_out and max(told, default=0.0) < self.seconds / 2

    @property
    def last(self) -> tuple[str, Noted]:
        """The run that was under way when the process ended."""
        return next(reversed(self.runs.items()), ("", Noted()))


class Lab:
    """A workplace for the processes of one diagnosis."""

    def __init__(self, plan, place: isolation.Workplace, sealed: dict, spec: str, settings: dict, say):
        self.plan, self._place, self._spec, self._say = plan, place, spec, say
        self._sealed, self._settings = sealed, settings
        self.processes: list[Process] = []
        # Where and name of each value that eager does not repeat, once that is known.
        self.restless: list[list[str]] = []

    def process(self, runs: list[dict], cache: str = "") -> Process:
        """Make these runs in one process, on the cache folder of that name or on an empty one of its own."""
        number = len(self.processes) + 1
        labels = ", ".join(run["label"] for run in runs)
        self._say(f"process {number}: {labels}")
        folder = self._place.root / (cache or f"cache-{number}")
        folder.mkdir(exist_ok=True)
        notes = self._place.root / f"notes-{number}.jsonl"
        notes.touch()
        request = {
            "cell": {"experiment": SCRIPT, "policy": "default", "cache": "cold", "replicate": 1},
            "config": {
                "threads": self._settings["threads"],
                "seed": SEED,
                "device": "cpu",
                "recompile_limit": RECOMPILE_LIMIT,
                "diagnosis": {
                    "spec": self._spec,
                    "notes": str(notes),
                    "runs": runs,
                    "restless": self.restless,
                },
            },
            "vector_isa_known": self._sealed["vector_isa_known"],
        }
        done = Process({})
        start = time.perf_counter()
        try:
            told = isolation.run_process(
                "timed",
                request,
                self._place,
                self.plan.settings.python,
                {**self._environment(folder), MARK: str(notes)},
                self._settings["timeout"],
                lambda line: None,
            )
            done.facts, done.log = told["facts"], told["log"]
        except isolation.ProcessFailed as failed:
            done.died, done.log = _how(one_line(failed)), failed.log
        except EnvironmentProblem:
            raise
        except Problem:
            done.died, done.timed_out = f"was stopped after {self._settings['timeout']} s", True
        except FileNotFoundError:
            done.died = "ended without a word (os._exit?)"
        done.seconds = time.perf_counter() - start
        done.runs, done.unusable, done.fault = _read(notes)
        with contextlib.suppress(FileNotFoundError):
            # The next process gets a folder of the same name.
            shutil.rmtree(self._place.out / "timed")
        self.processes.append(done)
        return done

    def _environment(self, folder: Path) -> dict[str, str]:
        environment = isolation.child_environment(
            self._place, self._settings["threads"], self.plan.device, folder
        )
        return environment | self._settings["variables"]

    def clean(self, text: str) -> str:
        """The text without this machine's private folders."""
        return isolation.replace_paths(text, self._place, self.plan.settings.python)


def _how(told: str) -> str:
    """How a process ended, from the message that says so; what it printed last explains no signal."""
    how, _, words = told.partition("' ")[2].partition(": ")
    return how if words == "no output" or how.startswith("was killed") else f"{how}: {words}"


def _read(notes: Path) -> tuple[dict[str, Noted], str, str]:
    """What the runs noted, by label; what is wrong with the subject, and what with the probe."""
    runs: dict[str, Noted] = {}
    unusable = fault = label = ""
    for raw in notes.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(raw)
        except ValueError:
            # The line that a killed process was writing.
            continue
        if "begin" in line:
            label = line["begin"]
            runs[label] = Noted()
        elif "end" in line:
            runs[label].ended = True
        elif "unusable" in line:
            unusable = line["unusable"]
        elif "fault" in line:
            fault = line["fault"]
        elif label:
            runs[label].lines.append(line)
    return runs, unusable, fault


@contextlib.contextmanager
def opened(plan, spec: str, settings: dict, say):
    """A lab for one subject; its workplace lives as long as the context, and the machine is its own."""
    with isolation.host_lock(say):
        sealed = headers.require(plan, say)
        with isolation.workplace(plan.settings["scratch"]) as place:
            headers.link_into(place, sealed)
            yield Lab(plan, place, sealed, spec, settings, say)
