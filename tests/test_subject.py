"""What cannot be used is refused in one line that says why; a subject is made afresh each time."""

import re

import pytest

from complab.measure import subject

FINE = """
import torch
count = 0
def make():
    return torch.sin, {}
def calls():
    for _ in range(3):
        yield (torch.ones(2),), {}
"""


def written(folder, text):
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def stream(loaded):
    model, _ = loaded.make()
    return list(loaded.stream(model, lambda index: None))


def test_each_load_executes_the_file_anew(tmp_path):
    path = written(tmp_path, FINE)
    first = subject.load(path)
    first.module.count = 5
    assert subject.load(path).module.count == 0


def test_a_stream_gives_number_arguments_and_named_arguments(tmp_path):
    calls = stream(subject.load(written(tmp_path, FINE)))
    assert [index for index, _, _ in calls] == [0, 1, 2]
    assert len(calls[0][1]) == 1 and calls[0][2] == {}


def test_between_runs_before_the_arguments_of_its_call_are_made(tmp_path):
    text = FINE.replace("yield (torch.ones(2),), {}", "yield (count,), {}")
    text += "\ndef between(i, model):\n    global count\n    count = i * 10\n"
    calls = stream(subject.load(written(tmp_path, text)))
    assert [arguments for _, arguments, _ in calls] == [(0,), (10,), (20,)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("def make():", "def build():"), "it has no make()"),
        (("def calls():", "def requests():"), "it has no calls()"),
        (("    return torch.sin, {}", "    return torch.sin"), "it must return a pair"),
        (("    return torch.sin, {}", "    return 3, {}"), "cannot be called"),
        (("    return torch.sin, {}", "    return torch.sin, []"), "dict of torch.compile arguments"),
        (("range(3)", "range(0)"), "calls() is empty"),
        (("range(3)", "iter(int, 1)"), "it must end"),
        (("yield (torch.ones(2),), {}", "yield torch.ones(2)"), "each item is a pair"),
        (("count = 0", "TOLERANCE = 3"), "TOLERANCE is 3"),
        (("count = 0", "TOLERANCE = dict(rtol=-1)"), "neither negative"),
        (("count = 0", "REAL_CALLS = 0"), "REAL_CALLS is 0"),
        (("count = 0", "between = 7"), "between is a int"),
    ],
)
def test_what_is_no_subject_is_refused_by_name(tmp_path, change, told):
    path = written(tmp_path, FINE.replace(*change))
    with pytest.raises(subject.SubjectProblem, match=re.escape(told)):
        stream(subject.load(path))
