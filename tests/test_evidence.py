"""What a cell leaves behind is read back exactly, and refused as soon as it is not what was measured."""

import json
import math
import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from complab import evidence
from complab.config import PROJECT, Cell
from complab.errors import EXIT_UNVERIFIED, Unverified
from complab.evidence import (
    COLUMNS,
    EVIDENCE,
    LEDGER,
    PROVENANCE,
    RUN_LOG,
    TORCH_LOG,
    Row,
    csv_to_rows,
    rows_to_csv,
)

CELL = Cell("e1_opening_failure", "static", "cold", 1)
OTHER = Cell("e1_opening_failure", "static", "cold", 2)


def row(value: float = 1, *, detail: str = "", call: int | None = 0, metric: str = "new_variants") -> Row:
    return Row("e1_opening_failure", "static", "cold", 1, "model", call, metric, value, "calls", detail)


def refusal(action, *arguments) -> str:
    """The one line with which evidence is refused."""
    with pytest.raises(Unverified) as caught:
        action(*arguments)
    assert "\n" not in str(caught.value)
    assert caught.value.code == EXIT_UNVERIFIED
    return str(caught.value)


@pytest.fixture
def folder(tmp_path, place_cell):
    """A whole measured cell."""
    return place_cell(tmp_path / CELL.path, CELL)


def edit(folder, **changes) -> None:
    """Rewrite the record of a cell as someone who lies would."""
    path = folder / PROVENANCE
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, **changes}))


def forge(folder, name: str, content: bytes) -> None:
    """Rewrite a file and its hash in the record, so that only its content is left to tell."""
    (folder / name).write_bytes(content)
    files = json.loads((folder / PROVENANCE).read_text())["files"]
    edit(folder, files={**files, name: evidence.file_entry(folder / name)})


# The tidy table.


def test_counts_are_written_without_a_decimal_point_and_floats_exactly():
    lines = rows_to_csv([row(3.0), row(0.1 + 0.2), row(2.0**60)]).splitlines()
    assert [line.split(",")[7] for line in lines[1:]] == ["3", "0.30000000000000004", repr(2.0**60)]


@pytest.mark.fault("T13", "every float as text and back")
def test_every_finite_float_comes_back_exactly():
    draw = random.Random(7)
    special = [0.0, -0.0, 5e-324, 1.7976931348623157e308, 2.0**53, 2.0**53 - 1, -1.0, 1 / 3, 1e22]
    values = special + [draw.uniform(-1, 1) * 10.0 ** draw.randint(-300, 300) for _ in range(300)]
    read = csv_to_rows(rows_to_csv([row(value) for value in values]), "evidence.csv")
    assert [item.value for item in read] == values


def test_text_with_commas_quotes_and_other_alphabets_comes_back():
    told = "tensor 'idx' size mismatch, expected 60, actual \"63\" | größer als → 3"
    assert csv_to_rows(rows_to_csv([row(detail=told)]), "evidence.csv")[0].detail == told


def test_rows_come_back_as_they_were():
    rows = [row(call=None, metric="graphs_captured"), row(0.25, call=12), row(detail="0/1: reason")]
    assert csv_to_rows(rows_to_csv(rows), "evidence.csv") == rows


def test_a_detail_of_any_length_that_is_written_can_be_read():
    told = "a break and its reason; " * 10_000
    assert csv_to_rows(rows_to_csv([row(detail=told)]), "evidence.csv")[0].detail == told.strip()


def test_a_ledger_is_filled_from_the_text_that_is_kept():
    detail = "e.py:7:  if x  | a\nreason"
    assert row(detail=detail).detail == "e.py:7: if x | a reason"
    assert csv_to_rows(rows_to_csv([row(detail=detail)]), "evidence.csv") == [row(detail=detail)]


def test_a_row_is_one_line_whatever_its_detail_says():
    text = rows_to_csv([row(detail="first\nsecond\r\nthird\rfourth\u2028fifth"), row()])
    assert text.count("\n") == 3
    assert "\r" not in text
    assert csv_to_rows(text, "evidence.csv")[0].detail == "first second third fourth fifth"


@pytest.mark.fault("T18", "NaN and infinity as values")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_no_row(value):
    with pytest.raises(ValueError, match="record no value instead"):
        row(value)


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "", "three", "1e999"])
def test_a_value_that_is_no_number_is_refused_with_its_line(text):
    table = rows_to_csv([row(), row()]).replace("new_variants,1,", f"new_variants,{text},", 1)
    assert "evidence.csv: line 2" in refusal(csv_to_rows, table, "evidence.csv")


def tables():
    """Ways in which a table is not the one that was written, and what the refusal must name."""
    whole = rows_to_csv([row(), row(), row()])
    header, first, second, third = whole.splitlines()
    return {
        "cut in a line": (whole[:-8], "the last line is cut off"),
        "cut before the line's end": (whole[:-1], "the last line is cut off"),
        "empty": ("", "the last line is cut off"),
        "no header": ("\n".join([first, second, third, ""]), "columns are"),
        "carriage returns": (whole.replace("\n", "\r\n"), "line"),
        "one carriage return": (whole.replace("\n", "\r\n", 2).replace("\r\n", "\n", 1), "line"),
        "a carriage return inside a line": (whole.replace("model", "mo\rdel", 1), "line 2"),
        "byte order mark": ("\ufeff" + whole, "columns are"),
        "renamed column": (whole.replace("metric", "name", 1), "columns are"),
        "swapped columns": (whole.replace("value,unit", "unit,value", 1), "columns are"),
        "column more": (whole.replace(second, second + ",more", 1), "line 2"),
        "column fewer": ("\n".join([header, first, second.rsplit(",", 1)[0], third, ""]), "line 3"),
        "empty line": ("\n".join([header, first, "", third, ""]), "line 3"),
        "open quote": ("\n".join([header, first, second.replace("model", '"model'), third, ""]), "line"),
        "call that is no number": (whole.replace("model,0", "model,one", 1), "line 2"),
        "replicate that is no number": (whole.replace("cold,1,", "cold,1.5,", 1), "line 2"),
    }


@pytest.mark.fault("T7", "a table that was cut, misspelt, edited")
@pytest.mark.parametrize("damage", tables())
def test_a_damaged_table_is_refused_with_file_and_line(damage):
    text, told = tables()[damage]
    message = refusal(csv_to_rows, text, "results/evidence.csv")
    assert message.startswith("results/evidence.csv: ")
    assert told in message


@pytest.mark.fault("T7", "a renamed column")
def test_a_renamed_column_is_told_with_the_right_ones():
    text = rows_to_csv([row()]).replace("metric", "name", 1)
    assert ",".join(COLUMNS) in refusal(csv_to_rows, text, "evidence.csv")


# Placing.


def test_a_placed_cell_verifies_and_gives_its_rows(folder):
    record = evidence.verify(folder, "current", CELL)
    assert [item.metric for item in record.rows] == ["new_variants", "compiled_time"]
    assert record.rows[1].value == 1 / 3
    assert (record.failed, record.verdict, record.determinate) == (False, "cold-proven", True)


def test_a_placed_cell_leaves_nothing_behind(folder):
    assert {path.name for path in folder.iterdir()} == {EVIDENCE, LEDGER, TORCH_LOG, RUN_LOG, PROVENANCE}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_the_record_names_every_file_but_the_sealed_cache(tmp_path, place_cell):
    files = {evidence.SEALED_CACHE: b"tar", evidence.CACHE_MANIFEST: "{}\n"}
    folder = place_cell(tmp_path / "1", CELL, files)
    listed = json.loads((folder / PROVENANCE).read_text())["files"]
    assert set(listed) == {EVIDENCE, LEDGER, TORCH_LOG, RUN_LOG, evidence.CACHE_MANIFEST}
    assert (folder / evidence.SEALED_CACHE).read_bytes() == b"tar"


def test_what_an_older_attempt_left_is_withdrawn(tmp_path, place_cell):
    folder = place_cell(tmp_path / "1", CELL, {evidence.SEALED_CACHE: b"old"})
    (folder / "notes.txt").write_text("a person's own")
    place_cell(folder, CELL, outcome="failed", failure={"stage": "timed", "message": "no"})
    assert {path.name for path in folder.iterdir()} == {RUN_LOG, PROVENANCE, "notes.txt"}


def test_a_record_that_breaks_its_schema_is_not_placed_and_the_old_one_stays(folder, place_cell):
    with pytest.raises(ValueError, match="attempt"):
        place_cell(folder, CELL, {RUN_LOG: "new\n"}, attempt=0)
    assert evidence.verify(folder, "current", CELL).provenance["attempt"] == 1
    assert (folder / RUN_LOG).read_text() == "one line\n"


class Crash(BaseException):
    """The machine stops."""


@pytest.mark.fault("T2", "a crash at each step of publishing")
@pytest.mark.parametrize("moves", range(6))
@pytest.mark.parametrize("before", [False, True], ids=["first measurement", "measured again"])
def test_no_record_ever_stands_beside_files_it_does_not_describe(
    tmp_path, place_cell, monkeypatch, moves, before
):
    folder = tmp_path / CELL.path
    if before:
        place_cell(folder, CELL)
    really, done = os.replace, []

    def crash_after(source, target):
        if len(done) == moves:
            raise Crash
        done.append(target)
        really(source, target)

    monkeypatch.setattr(evidence.os, "replace", crash_after)
    try:
        place_cell(folder, CELL, {EVIDENCE: rows_to_csv([row(7)]), RUN_LOG: "again\n"}, attempt=2)
        crashed = False
    except Crash:
        crashed = True
    assert crashed == (moves < 5)
    if crashed:
        assert not (folder / PROVENANCE).exists()
        assert "measure the cell" in refusal(evidence.verify, folder, "current", CELL)
    else:
        assert evidence.verify(folder, "current", CELL).provenance["attempt"] == 2


@pytest.mark.fault("T2", "a measurement after a crash")
def test_the_cell_is_measured_again_after_a_crash(tmp_path, place_cell, monkeypatch):
    folder = tmp_path / CELL.path
    with monkeypatch.context() as patch:
        patch.setattr(evidence.os, "replace", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            place_cell(folder, CELL)
    (folder.parent / f".{folder.name}.private").rename(tmp_path / "left")
    place_cell(folder, CELL)
    evidence.verify(folder, "current", CELL)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [EVIDENCE, LEDGER, TORCH_LOG, RUN_LOG, PROVENANCE]
    )


@pytest.mark.fault("T4", "a text that could not be written to its end")
def test_a_text_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "complete.json"
    evidence.write_atomically(path, "old\n")
    with monkeypatch.context() as patch:
        patch.setattr(evidence.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            evidence.write_atomically(path, "new\n")
    assert path.read_text() == "old\n"
    assert [item.name for item in tmp_path.iterdir()] == ["complete.json"]


# Verifying.


@pytest.mark.fault("T7", "a flipped byte of any file of a cell")
def test_a_flipped_byte_is_found(folder):
    path = folder / EVIDENCE
    path.write_bytes(path.read_bytes().replace(b"new_variants,1", b"new_variants,2", 1))
    assert refusal(evidence.verify, folder, "current", CELL).startswith(f"{path}: was altered")


@pytest.mark.fault("T7", "a missing file of a cell")
@pytest.mark.parametrize("name", [EVIDENCE, LEDGER, TORCH_LOG, RUN_LOG])
def test_a_missing_file_is_named_with_the_remedy(folder, name):
    (folder / name).unlink()
    message = refusal(evidence.verify, folder, "current", CELL)
    assert message.startswith(f"{folder / name}: missing")
    assert message.endswith("measure the cell again")


@pytest.mark.fault("T7", "a truncated file of a cell")
@pytest.mark.parametrize("name", [EVIDENCE, LEDGER, RUN_LOG])
def test_a_truncated_file_is_named(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    assert refusal(evidence.verify, folder, "current", CELL).startswith(f"{folder / name}: has another size")


def test_a_folder_in_place_of_a_file_is_refused(folder):
    (folder / LEDGER).unlink()
    (folder / LEDGER).mkdir()
    assert str(folder / LEDGER) in refusal(evidence.verify, folder, "current", CELL)


@pytest.mark.fault("T7", "a link in place of a file")
def test_a_link_to_the_same_bytes_is_no_file_of_the_cell(folder, tmp_path):
    (folder / EVIDENCE).rename(tmp_path / "elsewhere.csv")
    (folder / EVIDENCE).symlink_to(tmp_path / "elsewhere.csv")
    assert f"{folder / EVIDENCE}: not a plain file" in refusal(evidence.verify, folder, "current", CELL)


@pytest.mark.parametrize("name", ["../2/evidence.csv", "sub/evidence.csv", "/etc/hostname", "..", "."])
def test_a_record_may_not_list_a_file_of_another_folder(folder, place_cell, name):
    place_cell(folder.parent / "2", OTHER)
    (folder / "sub").mkdir()
    (folder / "sub" / EVIDENCE).write_text("other\n")
    files = json.loads((folder / PROVENANCE).read_text())["files"]
    target = folder / name
    entry = evidence.file_entry(target) if target.is_file() else files[EVIDENCE]
    edit(folder, files={**files, name: entry})
    refusal(evidence.verify, folder, "current", CELL)


@pytest.mark.fault("T2", "a record that was deleted")
def test_evidence_without_a_record_is_no_evidence(folder):
    (folder / PROVENANCE).unlink()
    message = refusal(evidence.verify, folder, "current", CELL)
    assert message.startswith(f"{folder / PROVENANCE}: missing, so the files beside it are no evidence")


@pytest.mark.fault("T7", "a cell moved to another place")
def test_a_cell_that_was_moved_to_another_place_is_foreign(folder):
    message = refusal(evidence.verify, folder, "current", OTHER)
    assert f"tells of current/{CELL}, not of current/{OTHER}" in message


def test_a_cell_of_another_run_is_foreign(folder):
    message = refusal(evidence.verify, folder, "torch-2.13-cpu", CELL)
    assert f"tells of current/{CELL}, not of torch-2.13-cpu/{CELL}" in message


def test_a_record_that_lies_about_its_cell_is_caught_by_the_rows(folder):
    edit(folder, cell=vars(OTHER))
    assert f"{folder / EVIDENCE}: line 2 belongs to another cell" in refusal(
        evidence.verify, folder, "current", OTHER
    )


@pytest.mark.fault("T7", "a row of another cell")
def test_one_row_of_another_cell_is_named_by_its_line(folder):
    forge(folder, EVIDENCE, rows_to_csv([row(), replace(row(), policy="default"), row()]).encode())
    assert "line 3 belongs to another cell" in refusal(evidence.verify, folder, "current", CELL)


@pytest.mark.fault("T7", "a record that lies about a hash")
@pytest.mark.parametrize(
    "entry",
    [
        {"sha256": "0" * 64, "bytes": 9},
        {"sha256": "0" * 64},
        {"sha256": "short", "bytes": 9},
        "missing",
        None,
    ],
)
def test_a_record_that_lies_about_a_hash_is_refused(folder, entry):
    files = json.loads((folder / PROVENANCE).read_text())["files"]
    edit(folder, files={**files, RUN_LOG: entry})
    refusal(evidence.verify, folder, "current", CELL)


@pytest.mark.parametrize("name", [EVIDENCE, LEDGER, TORCH_LOG, RUN_LOG])
def test_a_record_that_hides_a_file_is_refused(folder, name):
    files = json.loads((folder / PROVENANCE).read_text())["files"]
    del files[name]
    edit(folder, files=files)
    assert f"lists no {name}" in refusal(evidence.verify, folder, "current", CELL)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b"\xff\xfe{}",
        b'{"schema_version": 1}',
    ],
)
def test_a_malformed_record_is_named_in_one_line(folder, content):
    (folder / PROVENANCE).write_bytes(content)
    assert refusal(evidence.verify, folder, "current", CELL).startswith(f"{folder / PROVENANCE}: ")


@pytest.mark.fault("T7", "a truncated record")
def test_a_cut_record_is_named_with_the_remedy(folder):
    path = folder / PROVENANCE
    path.write_text(path.read_text()[:-20])
    message = refusal(evidence.verify, folder, "current", CELL)
    assert message.startswith(f"{path}: unreadable")
    assert message.endswith("measure the cell again")


def test_a_record_of_another_version_is_refused_by_its_version(folder):
    edit(folder, schema_version=2)
    message = refusal(evidence.verify, folder, "current", CELL)
    assert f"{folder / PROVENANCE}: not a provenance record of version 1" in message
    assert "schema_version" in message


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"cell": {**vars(CELL), "cache": "tepid"}}, "cell.cache"),
        ({"cell": {**vars(CELL), "replicate": 0}}, "cell.replicate"),
        ({"cache": {"verdict": "surely cold", "reasons": []}}, "cache.verdict"),
        ({"outcome": "guessed"}, "outcome"),
        ({"gpu": "none"}, "gpu"),
        ({"surprise": 1}, "surprise"),
        ({"outcome": "failed"}, "failure"),
        ({"failure": {"stage": "timed", "message": "no"}}, "failure"),
    ],
)
def test_a_record_that_breaks_its_schema_is_refused_by_the_place(folder, changes, what):
    edit(folder, **changes)
    assert what in refusal(evidence.verify, folder, "current", CELL)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", "größer\n".encode("latin-1")])
def test_a_table_that_is_no_text_is_refused_though_its_hash_is_right(folder, content):
    forge(folder, EVIDENCE, content)
    assert refusal(evidence.verify, folder, "current", CELL).startswith(f"{folder / EVIDENCE}: ")


@pytest.mark.fault("T7", "line ends of another system")
def test_carriage_returns_are_refused_though_the_hash_is_right(folder):
    forge(folder, EVIDENCE, (folder / EVIDENCE).read_bytes().replace(b"\n", b"\r\n"))
    assert refusal(evidence.verify, folder, "current", CELL).startswith(f"{folder / EVIDENCE}: ")


def test_a_failed_cell_needs_only_its_log(tmp_path, place_cell):
    failure = {"stage": "timed", "message": "process 'timed' was killed by SIGKILL: no output"}
    folder = place_cell(tmp_path / "1", CELL, outcome="failed", exit_status=1, failure=failure)
    record = evidence.verify(folder, "current", CELL)
    assert (record.failed, record.determinate, record.rows) == (True, False, ())
    assert {path.name for path in folder.iterdir()} == {RUN_LOG, PROVENANCE}
    (folder / RUN_LOG).unlink()
    assert f"{folder / RUN_LOG}: missing" in refusal(evidence.verify, folder, "current", CELL)


@pytest.mark.parametrize("verdict", ["indeterminate", "not-judged"])
def test_a_cell_that_proves_nothing_is_read_but_not_determinate(tmp_path, place_cell, verdict):
    folder = place_cell(tmp_path / "1", CELL, cache={"verdict": verdict, "reasons": ["why"]})
    record = evidence.verify(folder, "current", CELL)
    assert (record.failed, record.determinate, len(record.rows)) == (False, False, 2)


@pytest.mark.parametrize("content", [None, b"{", b"[]", b"\xff"])
def test_planning_reads_a_record_or_finds_none(folder, content):
    assert evidence.peek(folder)["outcome"] == "measured"
    (folder / PROVENANCE).unlink()
    if content is not None:
        (folder / PROVENANCE).write_bytes(content)
    assert evidence.peek(folder) is None


def test_evidence_is_verified_without_torch_and_without_pandas(folder):
    program = (
        "import sys\n"
        "from complab import evidence\n"
        "from complab.config import Cell\n"
        f"record = evidence.verify({str(folder)!r}, 'current', Cell{tuple(vars(CELL).values())!r})\n"
        "heavy = {'torch', 'pandas', 'numpy', 'matplotlib', 'snakemake'}\n"
        "print(len(record.rows), sorted(heavy & sys.modules.keys()))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "scripts")}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "2 []\n"
