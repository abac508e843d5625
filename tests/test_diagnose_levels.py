"""A program's first failing level, its cause, and the test of it, under a backend that needs no compiler."""

import textwrap

import pytest

import diagnosing
from complab.diagnose import expectation

CALLS = """
def calls():
    for i in range(24):
        yield {given}
"""


@pytest.fixture
def diagnosed(monkeypatch, tmp_path, capsys):
    """The answer on a program, full by default, with every probe in this process."""
    diagnosing.alone(monkeypatch, tmp_path)
    diagnosing.without_processes(monkeypatch)
    return lambda text, *flags: diagnosing.answer(capsys, tmp_path, text, *(flags or ("--timeout", "600")))


def program(body: str, given: str = "(torch.ones(3),), {}", model: str = "f", options: str = "") -> str:
    """A subject: what the file holds, what each call is given, what make() returns."""
    head = f"import torch\n{textwrap.dedent(body)}\n"
    head += f'def make():\n    return {model}, dict(backend="eager", {options})\n'
    return head + CALLS.format(given=given)


HEALTHY = {
    "one shape": program("def f(x): return x.sin()"),
    "a short last batch": program("def f(x): return x.sin()", "(torch.ones(5 if i % 8 == 7 else 8, 3),), {}"),
    "batches of one": program("def f(x): return x.sin()", "(torch.ones((8, 5, 1, 3)[i % 4], 3),), {}"),
    "train and eval in turn": program(
        """
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        def between(i, model): model.train(i % 4 < 2)
        """,
        "(torch.ones(4, 3) * i,), {}",
        "net",
    ),
    "grad modes in turn": program(
        """
        net = torch.nn.Linear(3, 3)
        def between(i, model): torch.set_grad_enabled(i % 2 == 0)
        """,
        "(torch.ones(4, 3),), {}",
        "net",
    ),
    "a mask now and then": program(
        "def f(x, mask=None): return x.sin() if mask is None else x.sin() * mask",
        "(torch.ones(3),), ({} if i % 3 else {'mask': torch.ones(3)})",
    ),
    "a float that moves": program(
        "def f(x, rate): return x - rate * x.sin()", "(torch.ones(3), 1 / (i + 1)), {}"
    ),
    "an int that moves": program("def f(x, n): return x * n", "(torch.ones(3), i), {}"),
    "a fresh lambda": program("def f(x, act): return act(x)", "(torch.ones(3), lambda z: z.sin()), {}"),
    "one graph asked for": program("def f(x): return x.sin()", options="fullgraph=True"),
    "a method": program(
        """
        class Scaler:
            def __init__(self): self.k = torch.ones(3)
            def __call__(self, x): return x * self.k
        """,
        model="Scaler()",
    ),
    "a counter that is a tensor": program(
        """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("step", torch.zeros(()))
            def forward(self, x):
                self.step.add_(1)
                return x * self.step
        """,
        model="Net()",
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_fails_no_level_before_its_cost(diagnosed, name):
    told = diagnosed(HEALTHY[name], "--quick")
    assert [told.verdict(level) for level in ("RUNS", "CORRECT", "CAPTURED", "STABLE")] == ["pass"] * 4


UNSTABLE = {
    "a global": (
        "global-state",
        program(
            """
            level = 0
            def f(x): return x * level
            def between(i, model):
                global level
                level = i * 3
            """
        ),
    ),
    "a value in a global dict": (
        "global-state",
        program(
            """
            SET = {"a": {"b": 0}}
            def f(x): return x * SET["a"]["b"]
            def between(i, model): SET["a"]["b"] = i * 3
            """
        ),
    ),
    "an attribute of a global object": (
        "global-state",
        program(
            """
            class State: step = 0
            state = State()
            def f(x): return x * state.step
            def between(i, model): state.step = i * 3
            """
        ),
    ),
    "the type of a global object": (
        "global-state",
        program(
            """
            class Scale: k = 2.0
            scale = Scale()
            def f(x): return x * scale.k
            def between(i, model):
                global scale
                scale = type(f"Scale{i}", (Scale,), {})()
            """
        ),
    ),
    "a variable that the function closes over": (
        "global-state",
        program(
            """
            def build():
                word = ""
                def f(x): return x * len(word)
                def change(i):
                    nonlocal word
                    word = "a" * i
                return f, change
            f, change = build()
            def between(i, model): change(i)
            """
        ),
    ),
    "an attribute of a submodule": (
        "module-attribute",
        program(
            """
            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.step = 0
                def forward(self, x):
                    self.step += 1
                    return x * self.step
            """,
            model="torch.nn.Sequential(torch.nn.Identity(), Net())",
        ),
    ),
    "a string": ("python-value", program("def f(x, s): return x * len(s)", "(torch.ones(3), 'n%d' % i), {}")),
    "a list of any length": (
        "container-length",
        program("def f(x, rest): return x + sum(rest)", "(torch.ones(3), [torch.ones(3)] * (i + 2)), {}"),
    ),
    "static shapes": (
        "shape",
        program("def f(x): return x.sin()", "(torch.ones(i + 3),), {}", options="dynamic=False"),
    ),
}


@pytest.mark.parametrize("name", UNSTABLE)
def test_what_keeps_moving_is_named_and_held_still(diagnosed, name):
    word, text = UNSTABLE[name]
    told = diagnosed(text)
    assert (told.ledger["first_failing_level"], told.ledger["mechanism"]) == ("STABLE", word)
    assert told.ledger["intervention"]["verdict"] == "cause confirmed", told.ledger["intervention"]


BROKEN = {
    "item": ("tensor-to-python", program("def f(x): return x * x.sum().item()")),
    "a decision": ("data-dependent-branch", program("def f(x): return x.sin() if x.sum() > 0 else x.cos()")),
    "a mask": ("data-dependent-shape", program("def f(x): return x[x > 0].sin()")),
    "a clock": (
        "unsupported-call",
        program("import time\ndef f(x):\n    time.perf_counter()\n    return x.sin()"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_graph_is_named_with_its_line(diagnosed, name):
    word, text = BROKEN[name]
    told = diagnosed(text)
    assert (told.ledger["first_failing_level"], told.ledger["mechanism"]) == ("CAPTURED", word)
    assert told.ledger["evidence"]["source"]
    assert told.level("CAPTURED")["facts"]["fullgraph"]


def test_an_earlier_ledger_is_kept_to_or_what_got_worse_is_told(diagnosed, tmp_path):
    out = tmp_path / "out"
    before = diagnosed(HEALTHY["one shape"], "--quick", "--out", str(out))
    assert before.ledger["subject"]["options"] == {"backend": "eager"}
    earlier = str(out / "ledger.json")
    assert diagnosed(HEALTHY["one shape"], "--quick", "--expect", earlier).status == 0
    _, broken = BROKEN["item"]
    told = diagnosed(broken, "--quick", "--expect", earlier)
    assert told.status == 20
    assert "worse: breaks: 0 before, 1 now" in told.complaint


@pytest.mark.parametrize(("level", "worse"), [("WORTH IT", False), ("STABLE", True)])
def test_a_level_that_times_decide_is_no_part_of_the_gate(level, worse):
    counts = {"recompiles": 0, "variants": 1, "calls run eager": 0}
    before = {
        "first_failing_level": None,
        "levels": [{"level": "CAPTURED", "facts": {}}],
        "stability": counts,
        "sentence": "",
    }
    now = before | {"first_failing_level": level, "sentence": f"{level} fails"}
    said = []
    assert expectation.hold(before, now, said.append) == (expectation.EXIT_WORSE if worse else 0)
    assert ("first failing level" in said[0]) == worse


def test_a_file_that_is_no_ledger_is_refused(diagnosed, tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}", encoding="utf-8")
    told = diagnosed(HEALTHY["one shape"], "--quick", "--expect", str(path))
    assert told.status == 2
    assert "is no ledger" in told.complaint
