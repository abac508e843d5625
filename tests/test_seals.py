"""What was sealed here is known again, and nothing that was sealed elsewhere is taken for ours."""

import os
import stat

import pytest

from complab import seals
from complab.errors import EnvironmentProblem

ROOT = "5" * 64


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    """A machine without a key so far."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "complab" / seals.KEY


def test_what_this_machine_sealed_is_its_own_and_nothing_else_is():
    marked = seals.mark(ROOT)
    assert seals.ours(ROOT, marked)
    assert not seals.ours("6" * 64, marked)
    assert not seals.ours(ROOT, marked[:-1] + ("0" if marked[-1] != "0" else "1"))
    assert not any(seals.ours(ROOT, other) for other in (None, "", 5, ROOT, "ß" * 64))


def test_another_machines_mark_is_not_ours(monkeypatch, tmp_path):
    marked = seals.mark(ROOT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert not seals.ours(ROOT, marked)


def test_the_key_is_made_once_and_read_by_its_owner_only(state):
    seals.mark(ROOT)
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    key = state.read_bytes()
    seals.mark(ROOT)
    assert state.read_bytes() == key
    assert [path.name for path in state.parent.iterdir()] == [seals.KEY]


@pytest.mark.parametrize("broken", ["readable by all", "too short"])
def test_a_key_that_others_could_know_is_refused(state, broken):
    seals.mark(ROOT)
    if broken == "too short":
        state.write_bytes(b"1234")
    else:
        state.chmod(0o644)
    with pytest.raises(EnvironmentProblem, match="only you can read; remove it"):
        seals.mark(ROOT)


@pytest.mark.fault("T10", "no home for the key that seals")
def test_without_a_home_to_write_to_the_key_lies_where_only_this_user_can(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(file))
    home, own = seals._folders()[0], tmp_path / "own"
    monkeypatch.setattr(seals, "_folders", lambda: [home, own])
    assert seals.ours(ROOT, seals.mark(ROOT))
    assert (own / seals.KEY).stat().st_uid == os.getuid()


@pytest.mark.fault("T10", "nowhere to keep the key that seals")
def test_nowhere_to_keep_a_key_is_said_with_the_remedy(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr(seals, "_folders", lambda: [file / "one", file / "two"])
    with pytest.raises(EnvironmentProblem, match="set XDG_STATE_HOME"):
        seals.mark(ROOT)
