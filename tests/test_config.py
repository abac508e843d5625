"""A choice is either understood, or refused in one line that names the key and says what would do."""

import copy
import dataclasses
import itertools
import json
import random
import re
import sys

import jsonschema
import pytest
import yaml

from complab import config
from complab.config import Cell, Settings
from complab.errors import EXIT_USAGE, UsageProblem

SCHEMA = yaml.safe_load(config.SCHEMA_FILE.read_text(encoding="utf-8"))
MINIMAL = {"experiments": {"e3_graph_breaks": {"title": "Breaks", "policies": {"default": ["cold"]}}}}
OURS = yaml.safe_load(config.CONFIG_FILE.read_text(encoding="utf-8"))
SCALES = sorted(OURS["scales"])


@pytest.fixture
def given():
    """The project's configuration as a dict to change."""
    return copy.deepcopy(OURS)


def changed(given: dict, key: str, value) -> dict:
    """The configuration with the value at a dotted key replaced."""
    *parents, last = key.split(".")
    inner = given
    for part in parents:
        inner = inner[part]
    inner[last] = value
    return given


def refusal(given: dict) -> str:
    """The one line in which a configuration is refused."""
    with pytest.raises(UsageProblem) as caught:
        config.resolve(given)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("config.yaml")
    assert caught.value.code == EXIT_USAGE
    return message


def keys_of(schema: dict, path: str = ""):
    """Every key that a schema knows, with its schema and whether it must be given."""
    for name, sub in schema.get("properties", {}).items():
        yield f"{path}{name}", sub, name in schema.get("required", ())
        yield from keys_of(sub, f"{path}{name}.")
    free = schema.get("additionalProperties")
    if isinstance(free, dict):
        yield from keys_of(free, f"{path}NAME.")


KEYS = list(keys_of(SCHEMA))


# The schema.


@pytest.mark.parametrize(
    ("key", "schema"), [(key, schema) for key, schema, _ in KEYS], ids=[key for key, *_ in KEYS]
)
def test_each_key_is_explained_in_a_sentence(key, schema):
    assert len(schema["description"].split()) >= 2
    free = schema.get("additionalProperties")
    if isinstance(free, dict) and free.get("type") == "object":
        assert len(free["description"].split()) >= 2


@pytest.mark.parametrize(
    ("key", "schema"),
    # An object with keys that must be given has no default; leaving it out means that there is none.
    [(key, schema) for key, schema, must in KEYS if not must and not schema.get("required")],
    ids=[key for key, schema, must in KEYS if not must and not schema.get("required")],
)
def test_each_key_that_may_be_left_out_has_a_valid_default(key, schema):
    jsonschema.Draft202012Validator(schema).validate(schema["default"])


@pytest.mark.parametrize("key", [key for key, schema, _ in KEYS if "properties" in schema])
def test_an_object_with_known_keys_refuses_others(key):
    schema = next(schema for name, schema, _ in KEYS if name == key)
    assert schema["additionalProperties"] is False


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) >= set(config.MEASURED_KEYS)


@pytest.mark.parametrize("scale", SCALES)
def test_the_projects_own_configuration_is_accepted_at_every_scale(given, scale):
    settings = config.resolve({**given, "scale": scale})
    assert settings["scale"] == scale
    assert settings.cells()


# Refusals.


@pytest.mark.parametrize(
    ("key", "value", "name", "hint"),
    [
        ("devise", "cpu", "'devise'", "did you mean 'device'?"),
        ("workload.head", 2, "'workload.head'", "did you mean 'heads'?"),
        ("tolerance.absolute", 1e-4, "'tolerance.absolute'", "known keys: rtol, atol, reason"),
        (
            "experiments.e1_opening_failure.replicate",
            2,
            "'experiments.e1_opening_failure.replicate'",
            "did you mean 'replicates'?",
        ),
    ],
)
def test_an_unknown_key_is_refused_by_its_whole_name_with_a_guess(given, key, value, name, hint):
    message = refusal(changed(given, key, value))
    assert f"unknown key {name}" in message
    assert hint in message


def test_an_unknown_key_of_a_scale_is_refused_as_what_it_becomes(given):
    given["scales"]["quick"]["streems"] = {}
    message = refusal({**given, "scale": "quick"})
    assert "at scale quick: unknown key 'streems'; did you mean 'streams'?" in message


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("threads", "two", "threads"),
        ("threads", 0, "threads"),
        ("threads", True, "threads"),
        ("seed", -1, "seed"),
        ("keep_caches", "no", "keep_caches"),
        ("device", "tpu", "device"),
        ("scratch", "tmp", "scratch"),
        ("run", "../elsewhere", "run"),
        ("run", ".hidden", "run"),
        ("run", "two words", "run"),
        ("workload", 3, "workload"),
        ("workload.dim", 1.5, "workload.dim"),
        ("tolerance.rtol", "small", "tolerance.rtol"),
        ("streams.service", [60, "sixty"], "streams.service[1]"),
        ("streams.service", [], "streams.service"),
        ("streams.service", [60, 1], "streams.service[1]"),
        ("noise.confidence", 1, "noise.confidence"),
        (
            "experiments.e1_opening_failure.policies.static",
            ["tepid"],
            "experiments.e1_opening_failure.policies.static[0]",
        ),
        ("experiments.e1_opening_failure.replicates", 0, "experiments.e1_opening_failure.replicates"),
        ("experiments.e1_opening_failure.probes", ["profile"], "experiments.e1_opening_failure.probes[0]"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_key(given, key, value, name):
    assert refusal(changed(given, key, value)).startswith(f"config.yaml: {name}: ")


def test_a_scale_for_an_experiment_that_is_gone_is_named(given):
    del given["experiments"]["e3_graph_breaks"]
    told = refusal(given)
    assert "scales.quick.experiments.e3_graph_breaks: there is no such experiment" in told
    assert told.endswith("remove it here too")


def test_two_experiments_of_one_number_are_refused(given, monkeypatch):
    monkeypatch.setattr(config, "_check_experiment", lambda *_: None)
    given["experiments"]["e3_again"] = given["experiments"]["e3_graph_breaks"]
    assert "experiments.e3_again: has the number of e3_graph_breaks" in refusal(given)


def test_an_unknown_scale_is_named_with_the_known_ones(given):
    assert "unknown scale 'huge'; choose from full, quick" in refusal({**given, "scale": "huge"})


@pytest.mark.parametrize("key", ["run", "scale", "scales"])
def test_a_scale_may_not_say_which_evidence_set_is_written(given, key):
    given["scales"]["quick"][key] = given[key]
    assert f"scales.quick may not set '{key}'" in refusal({**given, "scale": "quick"})


def test_a_request_beyond_the_position_table_is_named_with_its_place_and_the_remedy(given):
    given["streams"]["service"][3] = 129
    message = refusal(given)
    assert "streams.service[3]: length 129 is beyond the position table (workload.max_length 128)" in message
    assert "raise max_length or shorten the request" in message


def test_an_unknown_stream_is_named_with_the_known_ones(given):
    message = refusal(changed(given, "experiments.e6_dynamic_shapes.settings.stream", "swep"))
    assert (
        "experiments.e6_dynamic_shapes.settings.stream: no stream 'swep'; choose from service, sweep"
        in message
    )


def test_a_subjects_file_must_be_there(given):
    told = refusal(changed(given, "subjects.mine", {"subject": "nowhere.py"}))
    assert told == "config.yaml: subjects.mine.subject: nowhere.py does not exist"


def test_a_subject_that_is_gone_is_named_where_a_scale_still_has_it(given):
    told = refusal(changed(given, "subjects", {}))
    assert "scales.quick.subjects.e15_geometric_gcn: there is no such subject; remove it here too" in told


def test_heads_must_divide_the_width(given):
    assert "workload.dim 256 is not a multiple of workload.heads 3" in refusal(
        changed(given, "workload.heads", 3)
    )


def test_heads_must_divide_the_width_of_an_experiments_own_sizes(given):
    assert "experiments.e9_backends.workload.dim 256 is not a multiple of" in refusal(
        changed(given, "experiments.e9_backends.workload", {"heads": 3})
    )


@pytest.mark.parametrize(
    ("policy", "caches", "why"),
    [
        ("eager", ["cold"], "eager compiles nothing, so its only cache state is none"),
        ("eager", ["none", "cold"], "eager compiles nothing, so its only cache state is none"),
        ("static", ["none", "cold"], "none excludes the other cache states"),
        ("static", ["warm"], "warm needs cold, whose sealed cache it reads"),
    ],
)
def test_an_impossible_cache_state_is_named_with_its_reason(given, policy, caches, why):
    message = refusal(changed(given, f"experiments.e1_opening_failure.policies.{policy}", caches))
    assert f"experiments.e1_opening_failure.policies.{policy}: {why}" in message


def test_a_scratch_folder_with_a_space_is_refused_with_the_reason(given):
    message = refusal({**given, "scratch": "/tmp/my scratch"})
    assert "scratch: '/tmp/my scratch' has a space" in message
    assert "choose a path without spaces" in message


@pytest.mark.parametrize("run", ["", "current", "current-quick"])
def test_another_interpreter_needs_a_run_name_of_its_own(given, run):
    message = refusal({**given, "python": "/opt/other/bin/python", "run": run})
    assert "python: another interpreter needs a run name of its own; add run=NAME" in message


def test_another_interpreter_with_its_own_run_name_is_accepted(given):
    settings = config.resolve({**given, "python": "/opt/other/bin/python", "run": "torch-2.6-cpu"})
    assert (settings.python, settings.run) == ("/opt/other/bin/python", "torch-2.6-cpu")


def test_naming_this_very_interpreter_needs_no_run_name(given):
    assert config.resolve({**given, "python": sys.executable}).run == "current"


def test_an_experiment_without_a_script_is_refused_with_the_file_to_write(given):
    given["experiments"]["e99_unwritten"] = given["experiments"]["e3_graph_breaks"]
    assert "experiments.e99_unwritten: scripts/e99_unwritten.py does not exist" in refusal(given)


def test_a_configuration_without_experiments_is_refused_by_that_key():
    assert "experiments" in refusal({"scale": "full"})


@pytest.mark.parametrize("text", ["a: [\n", "- full\n", "full\n", "3\n", "\ta: b\n", "", "a: \udcff\n"])
def test_a_file_that_is_no_configuration_is_named_in_one_line(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageProblem, match=re.escape("mine.yaml")) as caught:
        config.load(path)
    assert "\n" not in str(caught.value)


def test_a_script_without_an_entry_is_named(tmp_path):
    given = yaml.safe_load(config.CONFIG_FILE.read_text(encoding="utf-8"))
    for experiments in (
        given["experiments"],
        *(scale.get("experiments", {}) for scale in given["scales"].values()),
    ):
        experiments.pop("e3_graph_breaks", None)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    with pytest.raises(
        UsageProblem, match=re.escape("mine.yaml: scripts/e3_graph_breaks.py has no entry under experiments")
    ):
        config.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageProblem, match=re.escape("absent.yaml: cannot be read")):
        config.load(tmp_path / "absent.yaml")


# What the settings are.


def test_missing_keys_take_the_schemas_defaults():
    settings = config.resolve(MINIMAL)
    assert settings["threads"] == 1
    assert settings["workload"] == {"vocabulary": 512, "dim": 256, "heads": 4, "blocks": 4, "max_length": 128}
    assert settings["noise"]["practical_threshold"] == 0.03
    entry = settings.experiment("e3_graph_breaks")
    assert (entry["replicates"], entry["probes"], entry["settings"]) == (1, [], {})


def test_a_default_fills_only_what_is_missing():
    settings = config.resolve({**MINIMAL, "workload": {"dim": 64}})
    assert settings["workload"]["dim"] == 64
    assert settings["workload"]["heads"] == 4


def test_the_quick_scale_changes_what_it_names_and_nothing_else(given):
    full, quick = config.resolve(given), config.resolve({**given, "scale": "quick"})
    assert (full["recompile_limit"], quick["recompile_limit"]) == (8, 3)
    assert (full["workload"]["dim"], quick["workload"]["dim"]) == (256, 64)
    assert quick["workload"]["vocabulary"] == full["workload"]["vocabulary"]
    assert quick.experiment("e1_opening_failure")["replicates"] == 1
    assert (
        quick.experiment("e1_opening_failure")["policies"]
        == full.experiment("e1_opening_failure")["policies"]
    )
    for name in quick["experiments"]:
        assert list(quick.experiment(name)["policies"]) == list(full.experiment(name)["policies"])
    assert {key for key in full.values if full[key] != quick[key]} == {"scale", *given["scales"]["quick"]}


@pytest.mark.parametrize(
    ("choice", "run"),
    [
        ({}, "current"),
        ({"scale": "quick"}, "current-quick"),
        ({"run": "torch-2.13-cpu"}, "torch-2.13-cpu"),
        ({"run": "mine", "scale": "quick"}, "mine"),
    ],
)
def test_the_run_is_named_by_choice_or_by_scale(given, choice, run):
    assert config.resolve({**given, **choice}).run == run


def test_overrides_lie_over_the_file():
    settings = config.load(overrides={"threads": 2, "workload": {"blocks": 1}})
    assert settings["threads"] == 2
    assert settings["workload"] == {**config.load()["workload"], "blocks": 1}


def test_what_the_command_line_says_wins_over_the_scale_it_names():
    settings = config.load(overrides={"scale": "quick", "recompile_limit": 5})
    assert settings["recompile_limit"] == 5
    assert settings["workload"]["dim"] == config.load(overrides={"scale": "quick"})["workload"]["dim"]


def test_what_a_command_line_changed_can_be_handed_on(given):
    merged = {
        **given,
        "scale": "quick",
        "workload": {**given["workload"], "vocabulary": 300},
        "keep_caches": False,
    }
    overrides = json.loads(json.dumps(config.overrides_between(given, merged)))
    assert set(overrides) == {"scale", "workload", "keep_caches"}
    assert config.load(overrides=overrides) == config.resolve(merged)
    assert config.overrides_between(given, dict(given)) == {}


# Cells.


@pytest.mark.parametrize("scale", SCALES)
def test_each_cold_cell_comes_before_its_warm_one(given, scale):
    cells = config.resolve({**given, "scale": scale}).cells()
    assert len(cells) == len(set(cells))
    for cell in cells:
        if cell.cache == "warm":
            assert cells.index(Cell(cell.experiment, cell.policy, "cold", cell.replicate)) < cells.index(cell)


def test_cold_comes_first_even_where_the_file_says_warm_first(given):
    settings = config.resolve(
        changed(given, "experiments.e3_graph_breaks.policies.default", ["warm", "cold"])
    )
    assert [cell.cache for cell in settings.cells("e3_graph_breaks")][:2] == ["cold", "warm"]


def test_there_is_a_cell_for_each_policy_cache_state_and_replicate(given):
    settings = config.resolve(given)
    for name, entry in given["experiments"].items():
        processes = {
            policy: 1 if policy in entry.get("once", []) else entry["replicates"]
            for policy in entry["policies"]
        }
        expected = sum(processes[policy] * len(caches) for policy, caches in entry["policies"].items())
        assert len(settings.cells(name)) == expected
    assert len(settings.cells()) == sum(len(settings.cells(name)) for name in given["experiments"])


def test_cells_stand_experiment_by_experiment_and_in_each_replicate_by_replicate(given):
    settings = config.resolve(given)
    cells = settings.cells()
    names = list(given["experiments"])
    assert cells == sorted(cells, key=lambda cell: (names.index(cell.experiment), cell.replicate))
    for cold, after in itertools.pairwise(cells):
        if cold.cache == "cold" and "warm" in given["experiments"][cold.experiment]["policies"][cold.policy]:
            assert after == dataclasses.replace(cold, cache="warm")


def test_a_policy_measured_once_has_no_further_replicate(given):
    cells = config.resolve(given).cells("e7_observer_effect")
    told = {
        cell.policy: [c.replicate for c in cells if (c.policy, c.cache) == (cell.policy, cell.cache)]
        for cell in cells
    }
    assert told["observers"] == told["return"] == [1] and told["clean"] == told["print"] == [1, 2, 3]


def test_a_policy_measured_once_must_be_there(given):
    with pytest.raises(UsageProblem, match=r"e9_backends\.once: no policy 'faults'; choose from backend"):
        config.resolve(changed(given, "experiments.e9_backends.once", ["faults"]))


def test_only_the_break_even_times_the_steady_state_of_warm_processes(given):
    settings = config.resolve(given)
    told = {name for name in given["experiments"] if "warm" in settings.experiment(name)["steady_caches"]}
    assert told == {"e11_break_even"}


def test_a_cells_folder_tells_the_cell():
    assert Cell("e1_opening_failure", "static", "cold", 3).path == "e1_opening_failure/static/cold/3"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            Cell("e2_missing", "static", "cold", 1),
            "unknown experiment 'e2_missing': config.yaml has e1_opening_failure",
        ),
        (Cell("e3_graph_breaks", "static", "cold", 1), "unknown policy 'static'; choose from default"),
        (
            Cell("e1_opening_failure", "eager", "cold", 1),
            "policy 'eager' has no cache state 'cold'; choose from none",
        ),
    ],
)
def test_a_cell_that_the_configuration_does_not_name_is_refused(cell, message):
    with pytest.raises(UsageProblem, match=re.escape(message)):
        config.load().check_cell(cell)


# The slice that decides measurements.


def slice_of(given: dict, experiment: str = "e1_opening_failure") -> dict:
    return config.resolve(given).measured_slice(experiment, "cpu")


def test_the_slice_holds_the_lengths_of_the_stream_not_its_name(given):
    told = slice_of(given)
    assert told["settings"] == {"lengths": given["streams"]["service"]}


def test_renaming_a_stream_makes_nothing_stale(given):
    before = slice_of(given)
    given["streams"]["requests"] = given["streams"].pop("service")
    given["experiments"]["e1_opening_failure"]["settings"]["stream"] = "requests"
    assert slice_of(given) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run", "elsewhere"),
        ("noise.practical_threshold", 0.5),
        ("keep_caches", False),
        ("scratch", "/var/tmp"),
        ("cell_timeout", 60),
        ("record_identity", True),
        ("experiments.e1_opening_failure.replicates", 9),
        ("experiments.e1_opening_failure.title", "Another heading"),
        ("experiments.e1_opening_failure.policies", {"static": ["cold"]}),
        ("experiments.e3_graph_breaks.settings", {"size": 3}),
        ("streams.sweep", [3, 4]),
    ],
)
def test_the_slice_does_not_change_with_what_is_not_measured(given, key, value):
    before = slice_of(given)
    assert slice_of(changed(given, key, value)) == before


def test_the_slice_does_not_change_with_what_is_drawn(given):
    settings = config.resolve(given)
    entry = settings.experiment("e1_opening_failure")
    experiments = {"e1_opening_failure": {**entry, "exhibit": {"figure": "another"}, "claims": []}}
    redrawn = Settings({**settings.values, "experiments": experiments})
    assert redrawn.measured_slice("e1_opening_failure", "cpu") == settings.measured_slice(
        "e1_opening_failure", "cpu"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("threads", 2),
        ("seed", 1),
        ("recompile_limit", 4),
        ("workload.dim", 128),
        ("tolerance.rtol", 1e-3),
        ("streams.service", [60, 63]),
        ("experiments.e1_opening_failure.steady_rounds", 5),
        ("experiments.e1_opening_failure.steady_caches", ["cold"]),
        ("experiments.e1_opening_failure.probes", []),
        ("experiments.e1_opening_failure.settings", {"stream": "sweep"}),
    ],
)
def test_the_slice_changes_with_what_is_measured(given, key, value):
    before = slice_of(given)
    assert slice_of(changed(given, key, value)) != before


def test_an_experiment_may_have_its_own_sizes(given):
    told = changed(given, "experiments.e9_backends.workload", {"blocks": 2})
    assert slice_of(told, "e9_backends")["workload"] == slice_of(given)["workload"] | {"blocks": 2}
    assert slice_of(told)["workload"] == slice_of(given)["workload"]


def test_the_slice_tells_the_device_that_was_found(given):
    settings = config.resolve(given)
    assert settings.measured_slice("e1_opening_failure", "cuda")["device"] == "cuda"
    assert settings.measured_slice("e1_opening_failure", "cpu")["device"] == "cpu"


def test_the_slice_does_not_depend_on_the_order_in_which_a_file_says_it(given):
    before = json.dumps(slice_of(given), sort_keys=True)
    draw = random.Random(3)
    for _ in range(5):
        keys = list(given)
        draw.shuffle(keys)
        shuffled = {key: given[key] for key in keys}
        assert json.dumps(slice_of(shuffled), sort_keys=True) == before
