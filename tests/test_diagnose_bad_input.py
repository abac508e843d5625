"""Whatever a subject does, the answer is one clear line or an honest ledger, and the diagnosis ends."""

import time

import pytest

import diagnosing
from complab.measure import subject
from diagnosing import SINE

BODY = "    return torch.sin(x) + 1"
GIVEN = "(torch.ones(2),)"


@pytest.fixture
def here(monkeypatch, tmp_path, capsys):
    """The answer on a subject's text, with every probe in this process."""
    diagnosing.alone(monkeypatch, tmp_path)
    diagnosing.without_processes(monkeypatch)
    monkeypatch.setattr(subject, "MAX_CALLS", 50)
    return lambda text, *flags: diagnosing.answer(capsys, tmp_path, text, *flags)


@pytest.fixture
def apart(monkeypatch, tmp_path, capsys):
    """The answer on a subject's text, with every probe in a process of its own."""
    diagnosing.alone(monkeypatch, tmp_path)
    return lambda text, *flags: diagnosing.answer(capsys, tmp_path, text, *flags)


def changed(old: str, new: str) -> str:
    assert old in SINE
    return SINE.replace(old, new)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (changed("def make", "def build"), "it has no make()"),
        (changed("def calls", "def requests"), "it has no calls()"),
        (changed("range(4)", "range(0)"), "calls() is empty"),
        (changed("range(4)", "iter(int, 1)"), "it must end"),
        (changed('program, {"backend": "eager"}', "program"), "it must return a pair"),
        (changed("def make():", "def make(:"), "executing it raises SyntaxError"),
        (changed("import torch", "import torch, not_there"), "executing it raises ModuleNotFoundError"),
        (changed("return program,", "return nothing,"), "make() raises NameError"),
        (changed("torch.ones(2)", "torch.ones(-2)"), "calls() or between() raises RuntimeError"),
        (changed('"eager"', '"nonsense"'), "torch.compile refuses its model or options: InvalidBackend"),
        (changed('"backend"', '"bakend"'), "torch.compile refuses its model or options: TypeError"),
        (changed(BODY, "    raise SystemExit(5)"), "it ends the process: SystemExit 5"),
        ("raise SystemExit(3)\n" + SINE, "it ends the process: SystemExit 3"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line_that_says_why(here, text, told):
    refused = here(text)
    assert refused.status == 2
    line = refused.complaint.strip().splitlines()[-1]
    assert line.startswith("complab: subject: ") and told in line


@pytest.mark.parametrize(
    "text",
    [
        changed(BODY, "    raise RuntimeError('No CUDA GPUs are available')"),
        changed("    return program,", "    raise AssertionError('Torch not compiled with CUDA enabled')\n#"),
        changed("import torch", "raise RuntimeError('Found no NVIDIA driver on your system')"),
    ],
    ids=["in a call", "in make", "when executed"],
)
def test_a_device_that_is_not_there_is_a_lack_of_the_machine(here, text):
    refused = here(text)
    assert refused.status == 3
    assert "needs a device that this machine does not offer" in refused.complaint


def test_a_call_that_raises_in_eager_is_the_programs_own_failure(here):
    told = here(changed(BODY, "    return x.reshape(3)"))
    assert (told.status, told.ledger["mechanism"]) == (11, "eager-error")
    assert told.ledger["evidence"]["source"] == "return x.reshape(3)"


@pytest.mark.parametrize(
    "text",
    [
        changed(BODY, "    x.mul_(2)\n    return x + 1"),
        changed(GIVEN, "(SHARED,)").replace(BODY, "    x.add_(1)\n    return x.sin()")
        + "\nSHARED = torch.ones(2)\n",
    ],
    ids=["new inputs", "one input for all calls"],
)
def test_mutated_inputs_are_each_runs_own(here, text):
    told = here(text)
    assert [told.verdict(level) for level in ("RUNS", "CORRECT", "CAPTURED", "STABLE")] == ["pass"] * 4


@pytest.mark.parametrize(
    "text",
    [
        "import os\n" + changed(BODY, "    return torch.sin(x) + os.urandom(1)[0]"),
        "import os\n" + changed("torch.ones(2)", "torch.full((2,), os.urandom(1)[0])"),
    ],
    ids=["of itself", "by its inputs"],
)
def test_a_program_that_does_not_repeat_itself_is_not_called_wrong(here, text):
    told = here(text)
    assert told.verdict("CORRECT") == "no evidence"
    assert told.evidence("CORRECT").startswith("eager differs from itself")


def test_the_levels_after_one_without_evidence_are_judged(here):
    told = here("import time\n" + changed(BODY, "    return torch.sin(x) * (time.perf_counter() * 1000 % 1)"))
    assert told.verdict("CORRECT") == "no evidence"
    assert (told.status, told.ledger["mechanism"]) == (13, "unsupported-call")


def test_a_clock_kept_beside_the_result_is_left_out_of_the_comparison(here):
    text = changed(BODY, f"    SPENT['s'] = time.perf_counter()\n{BODY}")
    told = here("import time\nSPENT = {'s': 0.0}\n" + text)
    assert told.verdict("CORRECT") == "pass"
    assert "eager does not repeat it: the state global SPENT['s']" in told.evidence("CORRECT")


def test_an_error_that_comes_now_and_then_is_no_evidence(here):
    text = changed(BODY, f"    TURN.append(1)\n    if len(TURN) % 2 == 0:\n        raise ValueError\n{BODY}")
    # Kept by what outlives each execution of the file.
    told = here("import sys\nTURN = sys.__dict__.setdefault('turn', [])\n" + text)
    assert (told.status, told.verdict("RUNS")) == (10, "no evidence")
    assert "in the second of two eager runs only" in told.evidence("RUNS")


STREAM_THAT_CANNOT_BE_MADE_AGAIN = """
import torch
class Store(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("position", torch.zeros((), dtype=torch.long))
        self.register_buffer("store", torch.zeros(4, 2))
    def forward(self, x):
        self.store.index_copy_(0, self.position.reshape(1), x)
        self.position.add_(1)
        return self.store.sum(0)
def make():
    return Store(), {"backend": "eager"}
def calls():
    for _ in range(4):
        yield (torch.ones(1, 2),), {}
"""


def test_calls_that_cannot_be_made_again_leave_the_cost_open(here):
    told = here(STREAM_THAT_CANNOT_BE_MADE_AGAIN)
    assert (told.status, told.ledger["first_failing_level"]) == (10, None)
    assert told.evidence("WORTH IT").startswith("made again, the calls raise IndexError")


ENDS = {
    "in the file": ("import os\nos._exit(0)\n" + SINE, 1, "before its first call the process ended"),
    "in make": (
        "import os\n" + changed("    return program,", "    os._exit(7)\n    return program,"),
        1,
        "before its first call the process ended with status 7",
    ),
}


@pytest.mark.parametrize("where", ENDS)
def test_a_process_that_ends_before_the_first_call_is_told_of(apart, where):
    text, status, told = ENDS[where]
    answer = apart(text)
    assert answer.status == status
    assert told in answer.complaint


def test_a_process_that_ends_in_a_call_says_in_which(apart):
    told = apart("import os\n" + changed(BODY, "    os.abort()"))
    assert (told.status, told.ledger["mechanism"]) == (11, "eager-error")
    assert told.evidence("RUNS") == "in call 0 of the eager run the process was killed by SIGABRT"


def test_a_file_that_hangs_is_stopped_and_the_limit_named(apart):
    started = time.monotonic()
    told = apart("import time\ntime.sleep(1000)\n" + SINE, "--quick", "--timeout", "3")
    assert told.status == 1
    assert "the process was stopped after 3 s" in told.complaint
    assert time.monotonic() - started < 60


@pytest.mark.slow
def test_a_call_that_hangs_is_named(apart):
    told = apart("import time\n" + changed(BODY, "    time.sleep(1000)"), "--quick", "--timeout", "20")
    assert told.status == 1
    assert "call 0 of the eager run hangs: the process was stopped after 20 s" in told.complaint


@pytest.mark.slow
def test_a_compiled_call_that_hangs_fails_there(apart):
    text = changed('"eager"', "hangs") + "\nimport time\ndef hangs(graph, inputs):\n    time.sleep(1000)\n"
    told = apart(text, "--quick", "--timeout", "20")
    assert told.status == 11
    assert told.evidence("RUNS") == "call 0 fails where eager runs: the process was stopped after 20 s"


@pytest.mark.slow
def test_a_compiled_call_that_ends_the_process_fails_there(apart):
    text = changed('"eager"', "aborts") + "\nimport os\ndef aborts(graph, inputs):\n    os.abort()\n"
    told = apart(text)
    assert (told.status, told.ledger["mechanism"]) == (11, "inductor-error")
    assert told.evidence("RUNS") == "call 0 fails where eager runs: the process was killed by SIGABRT"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.fork()\n" + SINE,
        "import os\n" + changed("    return program,", "    os.fork()\n    return program,"),
        "import os\n" + changed("        yield", "        os.fork()\n        yield"),
        "import subprocess\nsubprocess.Popen(['sleep', '500'], start_new_session=True)\n" + SINE,
    ],
    ids=["in the file", "in make", "in calls", "a daemon"],
)
def test_what_it_forks_or_starts_neither_measures_nor_outlives_it(apart, text):
    told = apart(text)
    assert [told.verdict(level) for level in ("RUNS", "CORRECT", "CAPTURED", "STABLE")] == ["pass"] * 4
    assert told.ledger["stability"]["calls"] == 4
    assert told.ledger["duration_s"] < 100


@pytest.mark.slow
def test_megabytes_on_both_outputs_disturb_nothing(apart):
    noisy = changed("        yield", "        print('x' * 5_000_000)\n        yield")
    assert apart("import sys\nprint('y' * 5_000_000, file=sys.stderr)\n" + noisy).verdict("STABLE") == "pass"
