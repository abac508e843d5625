"""A bundle carries all that a run has, comes out the same each time, and is refused whole if hostile."""

import contextlib
import json
import os
import random
import shutil
import stat
import struct
import zipfile
from pathlib import Path

import pytest

import recorded
from complab import attempts, bundle, config, crate, evidence, staleness
from complab.diagnose import kept
from complab.errors import EXIT_UNVERIFIED, Unverified, UsageProblem

EXPERIMENT = "e1_opening_failure"
FAILED = f"{EXPERIMENT}/static/cold/1"
WARM = f"{EXPERIMENT}/static/warm/1"
SUBJECT = f"{kept.FOLDER}/double/{evidence.LEDGER}"
RUN = recorded.RUN


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Recorded evidence of one experiment, a failed cell and its list of attempts, and a subject's ledger."""
    folder = recorded.copied(tmp_path_factory.mktemp("run"))
    for other in (folder / RUN).iterdir():
        if other.name != EXPERIMENT:
            shutil.rmtree(other)
    recorded.fail(folder, FAILED, "process 'timed' ended with <script>alert(1)</script>")
    log = recorded.folder_of(folder, FAILED) / evidence.RUN_LOG
    digest = evidence.sha256_of(log)
    (folder / RUN / attempts.LOGS).mkdir()
    shutil.copy(log, folder / RUN / attempts.LOGS / f"{digest}.log")
    attempts.append(folder / RUN, {"event": attempts.STARTED, "cell": FAILED, "attempt": 1})
    attempts.append(folder / RUN, {"event": attempts.FAILED, "cell": FAILED, "attempt": 1, "log": digest})
    ledger = folder / RUN / SUBJECT
    ledger.parent.mkdir(parents=True)
    ledger.write_text("{}\n")
    return folder


@pytest.fixture(scope="module")
def packed(results, tmp_path_factory):
    """A bundle of it."""
    target = tmp_path_factory.mktemp("bundle") / "bundle.zip"
    assert bundle.write(results, RUN, target) == len(recorded.cells_in(results, EXPERIMENT))
    return target


@pytest.fixture(scope="module")
def entities(packed):
    """What the bundle's crate describes, by @id."""
    with zipfile.ZipFile(packed) as archive:
        return {entity["@id"]: entity for entity in json.loads(archive.read(crate.METADATA))["@graph"]}


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def refusal(source: Path, folder: Path) -> str:
    """The one line with which a bundle is refused, before a file of it was written."""
    with pytest.raises(Unverified) as caught:
        bundle.unpack(source, folder)
    assert not folder.exists() or not list(folder.iterdir())
    assert caught.value.code == EXIT_UNVERIFIED
    told = str(caught.value)
    assert told.isprintable()
    assert told.startswith(f"{source}: ")
    return told


# What is in a bundle.


def test_every_cell_of_an_unpacked_bundle_verifies_and_has_its_rows(results, packed, tmp_path):
    assert bundle.unpack(packed, tmp_path) == RUN
    for cell in recorded.cells_in(results, EXPERIMENT):
        read, there = (evidence.verify(folder / RUN / cell.path, RUN, cell) for folder in (tmp_path, results))
        assert (read.rows, read.provenance) == (there.rows, there.provenance)


def test_a_bundle_holds_the_run_the_attempts_and_what_was_run_and_no_sealed_cache(results, packed):
    of_the_run = {name for name in members_of(packed) if name.startswith(f"{RUN}/")}
    assert of_the_run == {f"{RUN}/{name}" for name in files_below(results / RUN)}
    assert {f"{RUN}/{attempts.FILE}", f"{RUN}/{SUBJECT}"} <= of_the_run
    rest = members_of(packed).keys() - of_the_run
    assert {"Snakefile", "config.yaml", "run.json", "ro-crate-metadata.json", "LICENSE"} <= rest
    assert not [name for name in of_the_run if name.endswith(evidence.SEALED_CACHE)]


def test_the_unpacked_list_of_attempts_is_still_chained(packed, tmp_path):
    bundle.unpack(packed, tmp_path)
    assert [event["event"] for event in attempts.read(tmp_path / RUN)] == ["started", "failed"]


def test_a_bundle_tells_the_settings_and_the_cells_that_were_planned(packed, tmp_path):
    bundle.unpack(packed, tmp_path)
    told = bundle.facts(tmp_path)
    settings = config.load(overrides=told["overrides"])
    assert (told["run"], settings.run, settings["scale"]) == (RUN, RUN, "quick")
    assert told["planned"] == [str(cell) for cell in settings.cells()]


def test_equal_evidence_gives_an_equal_bundle(results, packed, tmp_path):
    copy = Path(shutil.copytree(results, tmp_path / "moved" / "results", copy_function=shutil.copyfile))
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    bundle.write(copy, RUN, tmp_path / "other.zip")
    assert (tmp_path / "other.zip").read_bytes() == packed.read_bytes()


def test_a_module_is_bundled_only_if_it_is_still_the_code_that_ran(results, tmp_path):
    copy = Path(shutil.copytree(results, tmp_path / "results"))
    now = staleness.code_digests(staleness.SCRIPTS / f"{EXPERIMENT}.py")
    ran = {f"{EXPERIMENT}.py": now[f"{EXPERIMENT}.py"], "complab/errors.py": "0" * 64, "../gone.py": "0" * 64}
    for cell in recorded.cells_in(copy, EXPERIMENT):
        recorded.edit_record(copy, cell.path, lambda record: record["code"].update(modules=ran))
    bundle.write(copy, RUN, tmp_path / "bundle.zip")
    scripts = {name for name in members_of(tmp_path / "bundle.zip") if name.startswith("scripts/")}
    assert scripts == {f"scripts/{EXPERIMENT}.py"}


def test_a_cell_that_does_not_verify_is_not_bundled(results, tmp_path):
    copy = Path(shutil.copytree(results, tmp_path / "results"))
    (recorded.folder_of(copy, WARM) / evidence.TORCH_LOG).write_text("another log")
    with pytest.raises(Unverified, match=r"torch\.log"):
        bundle.write(copy, RUN, tmp_path / "bundle.zip")
    assert not [path for path in tmp_path.iterdir() if path.name != "results"]


def test_a_log_of_an_attempt_that_is_gone_or_altered_stops_the_bundle(results, tmp_path):
    copy = Path(shutil.copytree(results, tmp_path / "results"))
    kept = next((copy / RUN / attempts.LOGS).iterdir())
    kept.write_text("another log")
    with pytest.raises(Unverified, match=kept.name):
        bundle.write(copy, RUN, tmp_path / "bundle.zip")


@pytest.mark.parametrize("run", ["nothing", "../results", "..", ""])
def test_a_run_without_evidence_is_told(results, run, tmp_path):
    with pytest.raises(UsageProblem, match="has no evidence"):
        bundle.write(results, run, tmp_path / "bundle.zip")


def test_a_run_may_not_bear_the_name_of_another_part_of_a_bundle(results, tmp_path):
    copy = Path(shutil.copytree(results / RUN, tmp_path / "results" / "workflow")).parent
    for cell in recorded.cells_in(results, EXPERIMENT):
        path = copy / "workflow" / cell.path / evidence.PROVENANCE
        path.write_text(json.dumps(json.loads(path.read_text()) | {"run": "workflow"}))
    with pytest.raises(UsageProblem, match="run 'workflow' bears the name"):
        bundle.write(copy, "workflow", tmp_path / "bundle.zip")


def test_a_bundle_becomes_a_run_among_the_results_once(packed, results, tmp_path):
    assert bundle.install(packed, tmp_path / "results") == RUN
    assert [path.name for path in (tmp_path / "results").iterdir()] == [RUN]
    for cell in recorded.cells_in(results, EXPERIMENT):
        evidence.verify(tmp_path / "results" / RUN / cell.path, RUN, cell)
    with pytest.raises(UsageProblem, match="is there already; move it away"):
        bundle.install(packed, tmp_path / "results")
    assert [path.name for path in (tmp_path / "results").iterdir()] == [RUN]


def test_what_is_no_bundle_leaves_nothing_among_the_results(tmp_path):
    (tmp_path / "some.zip").write_bytes(b"PK")
    with pytest.raises(Unverified):
        bundle.install(tmp_path / "some.zip", tmp_path / "results")
    assert list((tmp_path / "results").iterdir()) == []


def test_a_bundle_without_a_crate_as_older_ones_are_still_unpacks(results, tmp_path):
    with zipfile.ZipFile(tmp_path / "old.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files_below(results / RUN / EXPERIMENT)):
            archive.write(results / RUN / EXPERIMENT / name, f"{RUN}/{EXPERIMENT}/{name}")
    assert bundle.unpack(tmp_path / "old.zip", tmp_path / "out") == RUN
    assert bundle.facts(tmp_path / "out") is None
    assert files_below(tmp_path / "out" / RUN / EXPERIMENT) == files_below(results / RUN / EXPERIMENT)


# The crate.


def test_the_crate_is_a_workflow_run_crate_about_the_snakefile(entities):
    root, workflow = entities["./"], entities["Snakefile"]
    assert {profile["@id"] for profile in root["conformsTo"]} == {
        "https://w3id.org/ro/wfrun/process/0.5",
        "https://w3id.org/ro/wfrun/workflow/0.5",
        "https://w3id.org/workflowhub/workflow-ro-crate/1.0",
    }
    assert {standard["@id"] for standard in entities["ro-crate-metadata.json"]["conformsTo"]} == {
        "https://w3id.org/ro/crate/1.1",
        "https://w3id.org/workflowhub/workflow-ro-crate/1.0",
    }
    assert root["mainEntity"] == {"@id": "Snakefile"}
    assert workflow["@type"] == ["File", "SoftwareSourceCode", "ComputationalWorkflow"]
    assert entities[workflow["programmingLanguage"]["@id"]]["name"] == "Snakemake"
    assert entities[root["license"]["@id"]]["name"] == "MIT License"


def test_the_crate_is_dated_by_the_evidence(results, entities):
    ended = [
        evidence.read_provenance(folder.parent)["ended"] for folder in results.rglob(evidence.PROVENANCE)
    ]
    assert entities["./"]["datePublished"] == max(ended)


def test_every_cell_has_one_action_and_a_failed_one_tells_its_error(results, entities):
    actions = {name: entity for name, entity in entities.items() if entity["@type"] == "CreateAction"}
    assert set(actions) == {f"#{cell}" for cell in recorded.cells_in(results, EXPERIMENT)}
    failed = {
        name for name, action in actions.items() if action["actionStatus"].endswith("/FailedActionStatus")
    }
    assert failed == {f"#{FAILED}"} == {name for name, action in actions.items() if "error" in action}
    assert "<script>" in actions[f"#{FAILED}"]["error"]


def test_an_action_tells_command_times_files_and_environment(results, entities):
    action = entities[f"#{WARM}"]
    record = evidence.read_provenance(recorded.folder_of(results, WARM))
    assert (action["startTime"], action["endTime"]) == (record["started"], record["ended"])
    assert "--cache warm" in action["description"]
    assert {part["@id"] for part in action["result"]} == {
        f"{RUN}/{WARM}/{name}" for name in [*record["files"], evidence.PROVENANCE]
    }
    variables = [entities[reference["@id"]] for reference in action["environment"]]
    assert {variable["name"]: variable["value"] for variable in variables} == record["variables"]
    assert entities[action["agent"]["@id"]]["name"] == "name not recorded"


def test_the_log_of_a_failed_attempt_is_about_its_cell(entities):
    logs = [entity for name, entity in entities.items() if f"/{attempts.LOGS}/" in name]
    assert [log["about"] for log in logs] == [{"@id": f"#{FAILED}"}]


def altered(graph: dict[str, dict], identifier: str, /, **changes) -> None:
    for key, value in changes.items():
        graph[identifier].pop(key) if value is None else graph[identifier].update({key: value})


ROWS = f"{RUN}/{WARM}/evidence.csv"
DAMAGES = {
    "no name": (lambda graph: altered(graph, "./", name=None), "has no name"),
    "no description": (lambda graph: altered(graph, "./", description=None), "has no description"),
    "no license": (lambda graph: altered(graph, "./", license=None), "has no license"),
    "no date": (lambda graph: altered(graph, "./", datePublished="today"), "datePublished"),
    "another profile": (lambda graph: altered(graph, "./", conformsTo=[]), "does not conform to"),
    "no main entity": (lambda graph: altered(graph, "./", mainEntity=None), "mainEntity"),
    "no workflow": (lambda graph: altered(graph, "Snakefile", **{"@type": "File"}), "mainEntity"),
    "no language": (
        lambda graph: altered(graph, "Snakefile", programmingLanguage=None),
        "programmingLanguage",
    ),
    "another standard": (lambda graph: altered(graph, crate.METADATA, conformsTo=[]), "RO-Crate 1.1"),
    "about something else": (lambda graph: altered(graph, crate.METADATA, about=None), "about the bundle"),
    "another hash": (lambda graph: altered(graph, ROWS, sha256="0" * 64), f"{ROWS} has not the sha256"),
    "another size": (lambda graph: altered(graph, ROWS, contentSize="1"), f"{ROWS} has not the sha256"),
    "no format": (lambda graph: altered(graph, ROWS, encodingFormat=None), f"{ROWS} has no encodingFormat"),
    "a file not described": (lambda graph: graph.pop(ROWS), f"{ROWS} is there and not described"),
    "a file not part": (lambda graph: altered(graph, "./", hasPart=[]), "hasPart"),
    "an action less": (lambda graph: graph.pop(f"#{WARM}"), "not one action per cell"),
    "not mentioned": (lambda graph: altered(graph, "./", mentions=[]), "mentions"),
    "another instrument": (lambda graph: altered(graph, f"#{WARM}", instrument=None), "instrument"),
    "no result": (lambda graph: altered(graph, f"#{WARM}", result=[]), "result is not the files"),
    "no object": (lambda graph: altered(graph, f"#{WARM}", object=[]), "object"),
    "no end": (lambda graph: altered(graph, f"#{WARM}", endTime=None), "endTime"),
    "no agent": (lambda graph: altered(graph, f"#{WARM}", agent=None), "agent"),
    "a failure hidden": (
        lambda graph: altered(graph, f"#{FAILED}", actionStatus=crate.COMPLETED),
        "actionStatus is not what became of the cell",
    ),
    "an error less": (lambda graph: altered(graph, f"#{FAILED}", error=None), "error"),
    "a reference to nothing": (lambda graph: altered(graph, ROWS, about={"@id": "#gone"}), "refers to #gone"),
    "no reference": (lambda graph: altered(graph, "./", hasPart=["Snakefile"]), "no RO-Crate"),
    "no graph": (lambda graph: graph.clear(), "not described"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_crate_is_told(packed, damage):
    members = members_of(packed)
    files = {name: bundle._entry(content) for name, content in members.items() if name != crate.METADATA}
    document = json.loads(members[crate.METADATA])
    assert crate.problems(members[crate.METADATA], RUN, files) == []
    graph = {entity["@id"]: entity for entity in document["@graph"]}
    change, told = DAMAGES[damage]
    change(graph)
    document["@graph"] = list(graph.values())
    found = crate.problems(json.dumps(document).encode(), RUN, files)
    assert [problem for problem in found if told in problem], found


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b"\xff", b'{"@graph": [[]], "@context": 1}', b"[" * 10**5]
)
def test_what_is_no_crate_at_all_is_told_in_one_line(text):
    (told,) = crate.problems(text, RUN, {})
    assert "no RO-Crate" in told


# Hostile bundles.


def member(name: str, **changes) -> zipfile.ZipInfo:
    """A member as a bundle has it, but for the changes."""
    told = zipfile.ZipInfo("placeholder", bundle.EPOCH)
    told.compress_type, told.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | 0o644) << 16
    told.filename = name
    for key, value in changes.items():
        setattr(told, key, value)
    return told


def zipped(path: Path, *members: tuple[zipfile.ZipInfo, bytes]) -> Path:
    """A zip of one cell's file and of the members."""
    with zipfile.ZipFile(path, "w") as archive:
        for told, content in [(member("run/e/p/cold/1/run.log"), b"fine\n"), *members]:
            archive.writestr(told, content)
    return path


def patched(path: Path, old: bytes, new: bytes) -> Path:
    """The zip with bytes replaced wherever they stand, headers and directory alike."""
    data = path.read_bytes()
    assert old in data
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))
    return path


LINK = (stat.S_IFLNK | 0o777) << 16
HOSTILE = {
    "outside": (member("../outside.txt"), "'../outside.txt'"),
    "outside from within": (member("run/../../outside.txt"), "'run/../../outside.txt'"),
    "absolute": (member("/etc/cron.d/job"), "'/etc/cron.d/job'"),
    "backslashes": (member("run\\..\\..\\outside.txt"), "outside.txt'"),
    "a drive": (member("C:/outside.txt"), "'C:/outside.txt'"),
    "a hidden file": (member("run/e/p/cold/1/.bashrc"), ".bashrc'"),
    "a flag": (member("run/e/p/cold/1/-rf"), "-rf'"),
    "an empty part": (member("run//p/cold/1/x.log"), "'run//p/cold/1/x.log'"),
    "a control sign": (member("run/e/p/cold/1/\x1b[2J"), "\\x1b[2J'"),
    "a line break": (member("run/e/p/cold/1/x\ny"), "\\n"),
    "another alphabet": (member("run/e/p/cold/1/größe.log"), "gr"),
    "a look-alike": (member("run/e/p/cold/1/\u0435vidence.csv"), "vidence.csv'"),
    "a long name": (member("run/e/p/cold/1/" + "x" * 300), "xxx'"),
    "a link": (member("run/e/p/cold/1/link", external_attr=LINK), "'run/e/p/cold/1/link' is a link"),
    "a device": (member("run/e/p/cold/1/null", external_attr=stat.S_IFCHR << 16), "is a link, a folder"),
    "a folder": (member("run/e/p/cold/1/folder/"), "folder/'"),
    "a folder as a file": (member("run/e/p/cold/1/x", external_attr=0x10), "is a link, a folder"),
    "a file that is a folder too": (member("run/e/p/cold/1"), "'run/e/p/cold/1' is a file and a folder"),
    "a file as a folder": (member("run/e/p/cold/1/run.log/x"), "run.log' is a file and a folder"),
    "twice": (member("run/e/p/cold/1/run.log"), "'run/e/p/cold/1/run.log' is there twice"),
    "in another case": (member("run/e/p/cold/1/RUN.log"), "twice, as 'run/e/p/cold/1/run.log' too"),
    "another run": (member("other/e/p/cold/1/run.log"), "'other/e/p/cold/1/run.log' is no file of run run"),
    "too high up": (member("run/run.log"), "'run/run.log' is no file of run run"),
    "too deep": (member("run/e/p/cold/1/a/b.log"), "'run/e/p/cold/1/a/b.log' is no file"),
    "another method": (member("run/e/p/cold/1/x", compress_type=zipfile.ZIP_LZMA), "by method 14"),
    "hidden data": (member("run/e/p/cold/1/x", extra=b"\xfe\xca\x04\x00abcd"), "has hidden data"),
    "a note": (member("run/e/p/cold/1/x", comment=b"read me"), "has hidden data"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_member_is_refused_by_name_and_nothing_is_written(case, tmp_path):
    told, message = HOSTILE[case]
    with pytest.warns() if case == "twice" else contextlib.nullcontext():
        source = zipped(tmp_path / "hostile.zip", (told, b"content\n"))
    assert message in refusal(source, tmp_path / "out")


def test_the_zip_that_the_hostile_ones_differ_from_is_fine(tmp_path):
    source = zipped(tmp_path / "fine.zip", (member("run/e/p/cold/1/torch.log"), b"content\n"))
    assert bundle.unpack(source, tmp_path / "out") == "run"


def test_an_encrypted_member_is_refused(tmp_path):
    source = zipped(tmp_path / "hostile.zip", (member("run/e/p/cold/1/x.log"), b"content\n"))
    with zipfile.ZipFile(source) as archive:
        place = archive.getinfo("run/e/p/cold/1/x.log").header_offset
        begin = archive.start_dir
    data = bytearray(source.read_bytes())
    data[place + 6] |= 1
    entry = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02", begin) + 4)
    data[entry + 8] |= 1
    source.write_bytes(data)
    assert "'run/e/p/cold/1/x.log' is encrypted" in refusal(source, tmp_path / "out")


@pytest.mark.parametrize("raw", [b"x\xff.log", b"\xc3\x28.log", b"x\x00y.log"])
def test_a_name_that_is_no_ascii_is_refused_whatever_it_says_of_itself(raw, tmp_path):
    told = member("run/e/p/cold/1/" + "x" * len(raw))
    source = zipped(tmp_path / "hostile.zip", (told, b"content\n"))
    patched(source, b"1/" + b"x" * len(raw), b"1/" + raw)
    refusal(source, tmp_path / "out")
    data = bytearray(source.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 9] |= 8  # Says that its name is UTF-8.
    source.write_bytes(data)
    refusal(source, tmp_path / "out")


def test_a_member_that_shrank_beyond_belief_is_refused(tmp_path):
    source = zipped(tmp_path / "bomb.zip", (member("run/e/p/cold/1/x.log"), b"\0" * 2**24))
    assert "'run/e/p/cold/1/x.log' unpacks to more than 200 times" in refusal(source, tmp_path / "out")


def test_a_bundle_that_declares_more_than_a_run_has_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "MOST_UNPACKED", 10_000)
    source = zipped(
        tmp_path / "bomb.zip", (member("run/e/p/cold/1/x.log"), random.Random(1).randbytes(10_000))
    )
    told = refusal(source, tmp_path / "out")
    assert "10005 bytes unpacked" in told
    assert "'run/e/p/cold/1/x.log'" in told


@pytest.mark.parametrize("declared", [10, 3_000])
def test_a_member_of_another_size_than_declared_is_refused(declared, tmp_path):
    content = random.Random(1).randbytes(2_000)
    source = zipped(tmp_path / "bomb.zip", (member("run/e/p/cold/1/x.log"), content))
    patched(source, struct.pack("<L", 2_000), struct.pack("<L", declared))
    assert "'run/e/p/cold/1/x.log'" in refusal(source, tmp_path / "out")


def test_a_member_whose_content_is_not_that_of_its_checksum_is_refused(tmp_path):
    stored = member("run/e/p/cold/1/x.log", compress_type=zipfile.ZIP_STORED)
    source = zipped(tmp_path / "hostile.zip", (stored, b"faster by 1.322"))
    assert "'run/e/p/cold/1/x.log'" in refusal(patched(source, b"1.322", b"1.422"), tmp_path / "out")


def test_members_that_share_their_bytes_are_refused(tmp_path):
    content = random.Random(1).randbytes(5_000)
    members = [(member(f"run/e/p/cold/1/x{number}.log"), content) for number in range(4)]
    source = zipped(tmp_path / "bomb.zip", *members)
    data = source.read_bytes()
    begin = data.index(b"PK\x01\x02")
    with zipfile.ZipFile(source) as archive:
        first = archive.infolist()[1]
    end = first.header_offset + 30 + len(first.filename) + first.compress_size
    directory = bytearray(data[begin:-22])
    place = directory.index(b"PK\x01\x02", 4)
    while place != -1:
        directory[place + 42 : place + 46] = struct.pack("<L", first.header_offset)
        place = directory.find(b"PK\x01\x02", place + 4)
    tail = bytearray(data[-22:])
    tail[16:20] = struct.pack("<L", end)
    source.write_bytes(data[:end] + directory + tail)
    assert "zip bomb" in refusal(source, tmp_path / "out")


def test_more_members_than_a_run_has_are_refused_before_they_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "MOST_MEMBERS", 10)
    members = [(member(f"run/e/p/cold/1/x{number}.log"), b"") for number in range(10)]
    assert "11 members, more than 10" in refusal(zipped(tmp_path / "many.zip", *members), tmp_path / "out")


def test_a_directory_that_is_larger_than_it_says_is_refused(tmp_path):
    members = [(member(f"run/e/p/cold/1/x{number}.log"), b"") for number in range(50)]
    source = zipped(tmp_path / "many.zip", *members)
    patched(source, struct.pack("<HH", 51, 51), struct.pack("<HH", 1, 1))
    assert "directory is larger" in refusal(source, tmp_path / "out")


def test_a_zip_larger_than_any_bundle_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "MOST_ZIPPED", 100)
    assert "larger than 100 bytes" in refusal(zipped(tmp_path / "large.zip"), tmp_path / "out")


@pytest.mark.parametrize("prefix", [b"#!/bin/sh\n", b"\0" * 100])
def test_a_zip_with_something_before_it_is_refused(prefix, tmp_path):
    source = zipped(tmp_path / "hostile.zip")
    source.write_bytes(prefix + source.read_bytes())
    assert "its directory is not where" in refusal(source, tmp_path / "out")


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"no zip", b"PK\x05\x06" + b"\0" * 18, b"PK\x05\x06" + b"\xff" * 18]
)
def test_what_is_no_zip_or_an_empty_one_is_refused(content, tmp_path):
    source = tmp_path / "hostile.zip"
    source.write_bytes(content)
    refusal(source, tmp_path / "out")


def test_a_bundle_that_is_not_there_is_told(tmp_path):
    assert "No such file" in refusal(tmp_path / "gone.zip", tmp_path / "out")


# Tampering with a bundle that was fine.


def rebuilt(source: Path, target: Path, changes: dict[str, bytes | None]) -> Path:
    """The bundle with members changed, added or (None) removed, and sealed anew by whoever did that."""
    bundle._zip(target, {k: v for k, v in (members_of(source) | changes).items() if v is not None})
    return target


def test_a_bundle_taken_apart_and_put_together_is_the_same(packed, tmp_path):
    assert rebuilt(packed, tmp_path / "same.zip", {}).read_bytes() == packed.read_bytes()


def test_any_byte_that_changes_is_found(packed, tmp_path):
    whole, draw = packed.read_bytes(), random.Random(20)
    for place in [*(draw.randrange(len(whole)) for _ in range(60)), len(whole) - 1, len(whole) - 80]:
        data = bytearray(whole)
        data[place] ^= 1 << draw.randrange(8)
        (tmp_path / "altered.zip").write_bytes(data)
        refusal(tmp_path / "altered.zip", tmp_path / "out")


@pytest.mark.parametrize("length", [0, 1, 71, 72, 200, 5_000])
def test_a_bundle_that_was_cut_off_is_found(packed, length, tmp_path):
    (tmp_path / "cut.zip").write_bytes(packed.read_bytes()[: -1 - length])
    refusal(tmp_path / "cut.zip", tmp_path / "out")


def test_a_bundle_whose_seal_was_taken_off_is_refused(packed, tmp_path):
    with zipfile.ZipFile(tmp_path / "bare.zip", "w") as archive:
        for name, content in members_of(packed).items():
            archive.writestr(member(name), content)
    assert "without its seal" in refusal(tmp_path / "bare.zip", tmp_path / "out")


def test_a_bundle_that_is_made_to_look_old_lacks_no_check_of_its_members(packed, tmp_path):
    with zipfile.ZipFile(tmp_path / "bare.zip", "w") as archive:
        for name, content in members_of(packed).items():
            if name not in (crate.METADATA, crate.RUN_FACTS):
                archive.writestr(member(name), content)
    assert "is no file of run" in refusal(tmp_path / "bare.zip", tmp_path / "out")


REBUILT = {
    "without its crate": ({crate.METADATA: None}, "without ro-crate-metadata.json"),
    "without its run": ({crate.RUN_FACTS: None}, "without run.json"),
    "another run": ({crate.RUN_FACTS: b'{"run": "../x", "overrides": {}, "planned": []}'}, "tells no run"),
    "a run that is no text": (
        {crate.RUN_FACTS: b'{"run": 1, "overrides": {}, "planned": []}'},
        "tells no run",
    ),
    "no settings": ({crate.RUN_FACTS: b'{"run": "x", "overrides": 1, "planned": []}'}, "tells no run"),
    "endless brackets": ({crate.RUN_FACTS: b"[" * 10**5}, "tells no run"),
    "rows altered": ({ROWS: b"altered"}, f"{ROWS} has not the sha256"),
    "rows gone": ({ROWS: None}, f"{ROWS} is described and not there"),
    "a file more": ({f"{RUN}/{WARM}/trace.log": b"more"}, "trace.log is there and not described"),
    "a program": ({"setup.py": b"import os"}, "'setup.py' is no file of run"),
}


@pytest.mark.parametrize("case", REBUILT)
def test_a_bundle_that_was_altered_and_sealed_anew_is_refused(packed, case, tmp_path):
    changes, told = REBUILT[case]
    assert told in refusal(rebuilt(packed, tmp_path / "altered.zip", changes), tmp_path / "out")


def test_what_a_crate_says_cannot_steer_the_terminal(packed, tmp_path):
    document = json.loads(members_of(packed)[crate.METADATA])
    document["@graph"].append({"@id": "\x1b[2J", "@type": "File"})
    changes = {crate.METADATA: json.dumps(document).encode()}
    assert "\x1b" not in refusal(rebuilt(packed, tmp_path / "altered.zip", changes), tmp_path / "out")


def test_a_log_that_shrinks_beyond_belief_is_bundled_and_comes_back(results, tmp_path):
    copy = Path(shutil.copytree(results, tmp_path / "results"))
    log = recorded.folder_of(copy, WARM) / evidence.TORCH_LOG
    log.write_bytes(b"the same line again\n" * 200_000)
    entry = evidence.file_entry(log)
    recorded.edit_record(copy, WARM, lambda record: record["files"].update({evidence.TORCH_LOG: entry}))
    bundle.write(copy, RUN, tmp_path / "bundle.zip")
    bundle.unpack(tmp_path / "bundle.zip", tmp_path / "out")
    assert evidence.file_entry(recorded.folder_of(tmp_path / "out", WARM) / evidence.TORCH_LOG) == entry
