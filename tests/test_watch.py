"""A watched program does what it does unwatched, and a ledger of each of its compiled regions is told.

Programs compile with the backend `eager`, in processes of their own.
"""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import tomllib

import pytest

from complab.config import PROJECT
from test_worlds import file_of, imports_of, trees

SCRIPTS = PROJECT / "scripts"
WATCH = (sys.executable, "-m", "complab.cli", "watch")

# Forms of torch.compile, and at the end what Dynamo counted and the random numbers that are next.
FORMS = """
import copy, inspect, random, torch
from torch import compile as imported
from torch.utils.flop_counter import FlopCounterMode

torch.manual_seed(0)
random.seed(0)

@torch.compile(backend="eager")
def decorated(x): return x.sin() + 1

@torch.compile(fullgraph=True, dynamic=False, backend="eager")
def whole(x): return x.cos() * 2

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
    def forward(self, x): return self.inner(x).relu()
    def step(self, x): return self.inner(x).tanh()

@torch.compile(backend="eager")
class Called:
    def __call__(self, x): return x + 1

@torch.compile(backend="eager")
def within(x): return decorated(x) * 3

@torch.compile(backend="eager")
def makes(x): return torch.compile(lambda y: y * 2, backend="eager")(x) + 1

@torch.compiler.disable
def number(x): return x.sum().item()

@torch.compile(backend="eager")
def broken(x):
    return x + number(x)

net = Net()
net.compile(backend="eager")
shared = torch.compile(Net(), backend="eager")
bound = imported(Net().step, backend="eager")
own = torch.compile(torch.nn.Linear(4, 4), backend="eager")
again = torch.compile(decorated, backend="eager")
never = torch.compile(net.step, backend="eager")
moded = torch.compile(lambda x: x @ x, backend="eager")
off = torch.compile(number, disable=True)
x = torch.ones(2, 4)
for _ in range(3):
    for call in (decorated, whole, net, shared, bound, Called(), within, makes, broken, again):
        call(x)
copy.deepcopy(own)(x)
own(x)
with FlopCounterMode(display=False):
    moded(torch.ones(4, 4))

@torch.compile(dynamic=False, backend="eager")
def limited(x): return x * 2
for _ in range(2):
    for length in range(2, 12):
        limited(torch.ones(length))
for scale in range(3):
    torch.compile(lambda x: x.tan(), backend="eager")(x)

from torch._dynamo.utils import counters
print(dict(counters["frames"]), dict(counters["stats"]), sorted(counters["graph_break"].values()))
print(inspect.isclass(Called), type(shared).__name__, off is number, decorated.__wrapped__.__name__)
print(inspect.signature(decorated), torch.compile is imported)
print(torch.rand(2).tolist(), random.random())
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SCRIPTS), **more}


def run(*words: object, folder=None, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def written(folder, name: str, text: str):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def level(region: dict, name: str) -> dict:
    return next(each for each in region["levels"] if each["level"] == name)


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """The program with every form: unwatched, watched, and its ledgers."""
    folder = tmp_path_factory.mktemp("forms")
    written(folder, "forms.py", FORMS)
    plain = run(sys.executable, "forms.py", folder=folder)
    watched = run(*WATCH, "--json", "told.json", "forms.py", folder=folder)
    return plain, watched, json.loads((folder / "told.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def told(forms):
    """Its ledgers by the name of the region and the line that compiled it."""
    return {(each["region"], each["compiled at"].rpartition("/")[2]): each for each in forms[2]["regions"]}


def named(told: dict, name: str) -> dict:
    (found,) = (each for key, each in told.items() if key[0] == name)
    return found


# What the program does.


def test_a_watched_program_compiles_and_answers_as_it_does_unwatched(forms):
    plain, watched, _ = forms
    assert plain.returncode == 0, plain.stderr
    assert (watched.returncode, watched.stdout) == (0, plain.stdout)
    stamps = re.compile(r"^\w\d{4} [\d:.]+ \d+ ", re.MULTILINE)
    warned = stamps.sub("", plain.stderr)
    assert "hit config" in warned
    assert stamps.sub("", watched.stderr).startswith(warned + "complab watch: ")


def test_a_script_sees_what_it_would_see_without_us(tmp_path):
    program = """
        import sys
        print(__name__, __file__, sys.argv, sys.path[0], __spec__, type(__loader__), __package__)
        import __main__, beside
        print(vars(__main__) is globals(), "complab" in str(sys.path))
        sys.exit(3)
    """
    written(tmp_path, "program.py", program)
    written(tmp_path, "beside.py", "")
    words = ("program.py", "--json", "x", "--", "-m", "--python")
    plain = run(sys.executable, *words, folder=tmp_path, PYTHONPATH="")
    # The package is found by its place, so no PYTHONPATH reaches the program.
    start = f"import sys; sys.path.append({str(SCRIPTS)!r}); from complab import cli; cli.main()"
    watched = run(sys.executable, "-c", start, "watch", *words, folder=tmp_path, PYTHONPATH="")
    assert (watched.returncode, watched.stdout) == (3, plain.stdout), watched.stderr
    assert watched.stderr.startswith("complab watch: 0 compiled regions")


def test_a_module_runs_as_python_runs_it(tmp_path):
    program = """
        import os, sys
        from package import beside
        print(__name__, __file__, __package__, __spec__.name, sys.argv, sys.path[0] == os.getcwd())
    """
    written(tmp_path, "package/__init__.py", "")
    written(tmp_path, "package/beside.py", "")
    written(tmp_path, "package/__main__.py", program)
    plain = run(sys.executable, "-m", "package", "a", "-b", folder=tmp_path)
    watched = run(*WATCH, "-m", "package", "a", "-b", folder=tmp_path)
    assert (watched.returncode, watched.stdout) == (0, plain.stdout), watched.stderr


def test_after_an_exception_in_a_compiled_call_its_traceback_comes_first_and_is_its_own(tmp_path):
    program = """
        import torch

        @torch.compile(backend="eager")
        def compiled(x):
            return x @ x

        @torch.compile(backend="eager", fullgraph=True)
        def refused(x):
            torch._dynamo.graph_break()

        def main():
            try:
                refused(torch.ones(2))
            except Exception:
                compiled(torch.ones(2, 3))

        main()
    """
    written(tmp_path, "program.py", program)
    done = run(*WATCH, "program.py", folder=tmp_path)
    trace, _, ledger = done.stderr.partition("complab watch: ")
    assert done.returncode == 1
    # Torch itself may log an error before, in lines of its own form.
    said = trace[re.search("^Traceback", trace, re.MULTILINE).start() :]
    assert (
        f'Traceback (most recent call last):\n  File "{tmp_path}/program.py", line 18, in <module>\n' in said
    )
    assert "complab" not in said
    assert "RUNS      no evidence  call 0 raises" in ledger
    assert "RUNS fails, capture-refused" in ledger


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_program_as_it_would_and_the_ledger_is_told(tmp_path):
    program = """
        import time, torch
        compiled = torch.compile(lambda x: x + 1, backend="eager")
        compiled(torch.ones(2))
        print("ready", flush=True)
        time.sleep(60)
    """
    written(tmp_path, "program.py", program)
    process = subprocess.Popen(
        [*WATCH, "program.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert errors.index("KeyboardInterrupt") < errors.index("complab watch: 1 compiled region")
    assert "complab" not in errors.partition("complab watch: ")[0]


def test_threads_are_told_apart_and_waited_for(tmp_path):
    program = """
        import atexit, threading, time, torch

        @torch.compile(backend="eager", dynamic=False)
        def one(x): return x.sin()

        @torch.compile(backend="eager", dynamic=False)
        def two(x):
            torch._dynamo.graph_break()
            return x.cos()

        gate = threading.Barrier(4)

        def work(function, length):
            gate.wait()
            time.sleep(0.1)
            for _ in range(50):
                function(torch.ones(length))

        for function in (one, two):
            for length in (3, 4):
                threading.Thread(target=work, args=(function, length)).start()
        atexit.register(lambda: one(torch.ones(3)))
    """
    written(tmp_path, "program.py", program)
    done = run(*WATCH, "--json", "told.json", "program.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    one, two = json.loads((tmp_path / "told.json").read_text())["regions"]
    assert (one["stability"]["calls"], one["stability"]["variants"]) == (101, 2)
    assert level(one, "STABLE")["verdict"] == "pass"
    assert two["stability"]["calls"] == 100
    assert "other place" not in level(two, "CAPTURED")["evidence"]


# What is told of it.


def test_every_form_is_a_region_of_its_own(told):
    assert {name for name, _ in told} == {
        *("decorated", "whole", "Net", "Net.step", "Called", "within", "makes", "broken"),
        *("Linear", "<lambda>", "limited"),
    }
    passing = ("decorated", "whole", "Net.step", "Called", "within", "makes")
    for name in passing:
        found = [each for key, each in told.items() if key[0] == name]
        assert all(each["first_failing_level"] is None for each in found), name
    assert named(told, "whole")["options"] == {"fullgraph": "True", "dynamic": "False", "backend": "eager"}


def test_a_region_served_by_what_another_one_compiled_is_captured(told):
    net, shared = (each for key, each in told.items() if key[0] == "Net")
    assert (net["stability"]["variants"], shared["stability"]["variants"]) == (1, 0)
    assert "which shares its code" in level(shared, "CAPTURED")["evidence"]
    assert level(shared, "CAPTURED")["verdict"] == "pass"


def test_a_copy_of_a_compiled_module_is_seen(told):
    copied, own = sorted(
        (each for key, each in told.items() if key[0] == "Linear"),
        key=lambda each: -each["stability"]["variants"],
    )
    assert (copied["stability"]["variants"], own["stability"]["variants"]) == (1, 0)


def test_a_break_and_a_dispatch_mode_are_causes(told):
    assert named(told, "broken")["first_failing_level"] == "CAPTURED"
    assert "broken" not in level(named(told, "broken"), "CAPTURED")["mechanism"]
    moded = next(
        each for key, each in told.items() if key[0] == "<lambda>" and each["stability"]["calls"] == 1
    )
    assert moded["mechanism"] == "dispatch-mode-active"


def test_the_limit_and_the_calls_that_ran_eager_after_it(told):
    limited = named(told, "limited")
    assert (limited["first_failing_level"], limited["mechanism"]) == ("STABLE", "shape")
    fates = {"new variant": 8, "refused attempt": 1, "reuse": 8, "eager after the limit": 3}
    assert limited["stability"]["fates"] == fates


def test_what_a_loop_compiles_is_one_region(told):
    times = [each["times"] for key, each in told.items() if key[0] == "<lambda>"]
    assert sorted(times) == [1, 3]


def test_what_is_never_called_is_named_and_what_is_disabled_is_no_region(forms):
    assert forms[2]["not called"] == ["Net.step"]
    assert forms[2]["missed"] == []


def test_the_text_names_places_without_the_folder(forms):
    assert re.search(r"^decorated  forms\.py:\d+$", forms[1].stderr, re.MULTILINE)
    assert re.search(
        r"^watching adds [\d.]+ \[[\d.-]+, [\d.]+\] µs to a compiled call", forms[1].stderr, re.MULTILINE
    )


def test_a_programs_own_log_settings_neither_deafen_us_nor_print_more(tmp_path):
    program = """
        import torch
        torch._logging.set_logs(recompiles=True)

        @torch.compile(backend="eager", dynamic=False)
        def compiled(x):
            torch._dynamo.graph_break()
            return x + 1

        compiled(torch.ones(2))
        compiled(torch.ones(3))
    """
    written(tmp_path, "program.py", program)
    done = run(*WATCH, "program.py", folder=tmp_path)
    printed, _, ledger = done.stderr.partition("complab watch: ")
    assert "Recompiling function" in printed
    assert "Graph break" not in printed
    assert "CAPTURED  fail         graph break at program.py:7" in ledger


def test_the_overhead_is_an_interval_and_measuring_it_leaves_the_programs_state_alone(tmp_path):
    program = """
        import gc, torch
        from complab.measure import regions, watching

        def function(x): return x + 1

        def state():
            random = torch.get_rng_state().tolist()
            return random, regions.variants(function), gc.isenabled(), torch.is_grad_enabled()

        with watching.Watcher() as watcher:
            compiled = torch.compile(function, backend="eager")
            compiled(torch.ones(2))
            gc.disable()
            before, ledgers = state(), [each.ledger for each in watcher.regions]
            torch.compiler.set_stance("fail_on_recompile")
            assert "not measured" in watcher.report()["overhead"]
            torch.compiler.set_stance("default")
            told = watcher.report()["overhead"]
            assert state() == before
            assert [each.ledger for each in watcher.regions] == ledgers
            assert told["low"] <= told["added_s_per_call"] <= told["high"], told
            assert 0 < told["added_s_per_call"] < 1e-3, told
        calls = watcher.regions[0].calls
        compiled(torch.ones(2))
        assert watcher.regions[0].calls == calls
    """
    written(tmp_path, "program.py", program)
    done = run(sys.executable, "program.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr


# What is refused.


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("nowhere.py",), 2, "No such file or directory: '{folder}/nowhere.py'"),
        (("--python", "no/python", "x.py"), 2, "--python no/python is no program; name an interpreter"),
        (("-m", "nothing.here"), 2, "No module named 'nothing'"),
        (("-m", "nothing"), 2, "-m nothing is no module that can be run; name one, or a Python file"),
        (("--json", "no/told.json", "program.py"), 2, "No such file or directory: '{folder}/no/told.json'"),
    ],
)
def test_what_cannot_be_watched_is_refused_in_one_line(tmp_path, words, status, said):
    written(tmp_path, "program.py", "print('started')")
    done = run(*WATCH, *words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("complab: ")
    assert said.format(folder=tmp_path) in line


def test_an_interpreter_without_torch_is_refused(tmp_path):
    written(tmp_path, "program.py", "print('started')")
    start = "import sys; sys.modules['torch'] = None; from complab import watch; watch.main(['program.py'])"
    done = run(sys.executable, "-c", start, folder=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "complab: this Python has no torch; name one that has with --python\n"


def test_watching_needs_the_standard_library_and_torch_only():
    found, waiting = set(), [file_of("complab.watch")]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            for tree in trees(path).values():
                waiting += [ours for name in imports_of(tree) if (ours := file_of(name)) is not None]
    assert file_of("complab.measure.watching") in found
    tops = {name.split(".")[0] for tree in trees(*found).values() for name in imports_of(tree)}
    assert tops <= {*sys.stdlib_module_names, "torch", "complab"}


# The plugin of pytest.


LIBRARY = """
import torch

@torch.compile(backend="eager", dynamic=False)
def smooth(x): return x.sin()

@torch.compile(backend="eager")
def broken(x):
    torch._dynamo.graph_break()
    return x + 1
"""
GATES = """
import pytest, torch
import library

def test_smooth(compile_ledger):
    library.smooth(torch.ones(3))
    with compile_ledger:
        library.smooth(torch.ones(3))
    (region,) = compile_ledger.regions
    assert (region.name, region.calls, region.breaks, region.recompiles) == ("smooth", 1, 0, 0)
    library.smooth(torch.ones(4))
    (region,) = compile_ledger.regions
    assert (region.calls, region.graphs, region.recompiles) == (2, 1, 1)

def test_broken(compile_ledger):
    library.broken(torch.ones(3))
    (region,) = compile_ledger.regions
    assert region.ledger["first_failing_level"] == "CAPTURED"
    assert region.breaks == 0

def test_idle(compile_ledger):
    with pytest.raises(AssertionError, match="no watched region was called"):
        compile_ledger.regions

def test_own(compile_ledger):
    own = torch.compile(lambda x: x * 2, backend="eager")
    own(torch.ones(3))
    (region,) = compile_ledger.regions
    assert (region.calls, region.graphs, region.breaks) == (1, 1, 0)
"""


def pytest_run(folder, *words: str) -> subprocess.CompletedProcess:
    """Run pytest in the folder with the plugin as an installed complab brings it."""
    # Settings of its own, so that ours are not found.
    (folder / "pytest.ini").touch()
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, module),) = project["entry-points"]["pytest11"].items()
    written(
        folder, "installed/complab-0.dist-info/METADATA", "Metadata-Version: 2.1\nName: complab\nVersion: 0\n"
    )
    written(folder, "installed/complab-0.dist-info/entry_points.txt", f"[pytest11]\n{name} = {module}\n")
    path = os.pathsep.join([str(SCRIPTS), str(folder / "installed")])
    argv = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words)
    return run(*argv, folder=folder, PYTHONPATH=path)


def test_the_plugin_tells_the_ledgers_of_a_session_and_makes_gates_of_tests(tmp_path):
    written(tmp_path, "library.py", LIBRARY)
    written(tmp_path, "conftest.py", "import library\n")
    written(tmp_path, "test_gates.py", GATES)
    done = pytest_run(tmp_path, "--complab-watch")
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    told = r"where 1 = broken: 1 call, 2 graphs, 1 break, 0 recompiles \(.*library\.py:9\)\.breaks"
    assert re.search(told, done.stdout), done.stdout
    assert "watching.py" not in done.stdout and "Graph break" not in done.stdout
    ledgers = done.stdout.partition("complab watch: ")[2]
    assert ledgers.startswith("3 compiled regions")
    assert "smooth  library.py:4" in ledgers
    assert "CAPTURED  fail         graph break at library.py:9" in ledgers


def test_the_fixture_alone_sees_what_a_test_compiles(tmp_path):
    written(tmp_path, "library.py", LIBRARY)
    written(tmp_path, "test_gates.py", GATES)
    done = pytest_run(tmp_path, "-k", "own or idle or smooth")
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "seen with --complab-watch" in done.stdout
    assert "complab watch" not in done.stdout


def test_the_plugin_does_nothing_unasked_and_can_be_left_out(tmp_path):
    program = """
        import sys
        def test_nothing(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("complab")
            assert not {"torch", "complab.measure"} & sys.modules.keys()
    """
    written(tmp_path, "test_nothing.py", program)
    done = pytest_run(tmp_path)
    assert done.returncode == 0, done.stdout
    without = pytest_run(tmp_path, "-p", "no:complab")
    assert without.returncode == 1
    assert "complab.pytest_plugin" not in without.stdout


def test_our_own_tests_run_without_the_plugin(pytestconfig):
    assert not pytestconfig.pluginmanager.has_plugin("complab")
    assert "complab.pytest_plugin" not in sys.modules


# With Inductor.


@pytest.mark.slow
def test_training_under_inductor_gives_the_same_numbers(tmp_path):
    program = """
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.drop = torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)
            def forward(self, x):
                return self.drop(self.inner(x)).relu()

        torch.manual_seed(0)
        net = torch.compile(Net())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for length in (4, 4, 5, 6, 4):
            optimizer.zero_grad()
            loss = net(torch.randn(length, 8)).sum()
            loss.backward()
            optimizer.step()
        print(loss.item(), torch.rand(1).item())
    """
    written(tmp_path, "program.py", program)
    plain = run(sys.executable, "program.py", folder=tmp_path)
    watched = run(*WATCH, "--json", "told.json", "program.py", folder=tmp_path)
    assert (watched.returncode, watched.stdout) == (0, plain.stdout), watched.stderr
    (net,) = json.loads((tmp_path / "told.json").read_text())["regions"]
    assert (net["first_failing_level"], net["stability"]["variants"]) == (None, 2)
    assert net["options"] == {"backend": "inductor"}
