"""Does what a project's own tests compile stay captured and stable? A plugin of pytest.

`pytest --complab-watch`, or `complab_watch = true` in pytest's settings, tells a ledger of each compiled
region at the end of the session. The fixture `compile_ledger` makes a gate of one test. With neither, nothing
is done and torch is not imported.
"""

import contextlib

import pytest

from complab.errors import Problem, one_line

WATCHER = pytest.StashKey()


def pytest_addoption(parser) -> None:
    told = "watch every torch.compile region of the tests, and tell what became of it"
    parser.getgroup("complab").addoption("--complab-watch", action="store_true", help=told)
    parser.addini("complab_watch", told, type="bool", default=False)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config) -> None:
    # This early, since a conftest may import what it compiles.
    if early_config.known_args_namespace.complab_watch or early_config.getini("complab_watch"):
        early_config.stash[WATCHER] = _watching().Watcher()
        try:
            early_config.stash[WATCHER].__enter__()
        except Problem as problem:
            raise pytest.UsageError(f"complab: {one_line(problem)}") from None


def pytest_terminal_summary(terminalreporter, config) -> None:
    watcher = config.stash.get(WATCHER, None)
    if watcher is None:
        return
    from complab.measure import watched

    terminalreporter.section("complab watch")
    if getattr(config.option, "numprocesses", None):
        terminalreporter.line("the tests ran in processes of pytest-xdist, which are not watched; use -n 0")
    else:
        terminalreporter.line(watched.text(watcher.report(), str(config.invocation_params.dir)))


def pytest_unconfigure(config) -> None:
    watcher = config.stash.get(WATCHER, None)
    if watcher is not None:
        watcher.__exit__()


@pytest.fixture
def compile_ledger(request):
    """What the compiled regions do in this test: `.regions` holds those that were called in it.

    Each has `name`, `calls`, `graphs`, `breaks`, `recompiles` and its `ledger`. Whatever was compiled before
    is forgotten first. `with compile_ledger:` counts anew, so that a warm-up can be left out.
    """
    watching = _watching()
    with contextlib.ExitStack() as stack:
        watcher = request.config.stash.get(WATCHER, None)
        if watcher is None:
            watcher = stack.enter_context(watching.Watcher())
        # A test is not to depend on what those before it had compiled.
        watching.forget_variants()
        yield watching.Since(watcher)


def _watching():
    try:
        from complab.measure import watching
    except ModuleNotFoundError as problem:
        raise pytest.UsageError(f"complab: {problem}; compiled regions need torch to be watched") from None
    return watching
