"""What did the person choose, and which cells does that name?

`config.yaml` is validated, laid over by its scale, completed with the schema's defaults and checked
for sense. Everything later (rules, scripts, exhibits) reads the resulting `Settings`.
"""

import difflib
import json
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jsonschema
import yaml

from complab.errors import UsageProblem
from complab.measure.observers import CONTROL
from complab.measure.observers import POLICY as OBSERVERS

PROJECT = Path(__file__).resolve().parents[2]
SCHEMA_FILE = PROJECT / "workflow" / "schemas" / "config.schema.yaml"
CONFIG_FILE = PROJECT / "config.yaml"
# The one written in C reads the same ten times as fast; not every build of the library has it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Keys that change what a cell measures; the rest (run name, noise thresholds, where scratch lies)
# may change without making evidence stale.
MEASURED_KEYS = ("threads", "seed", "recompile_limit", "workload", "tolerance")


@dataclass(frozen=True, order=True)
class Cell:
    """One measurement: experiment x policy x cache state x replicate."""

    experiment: str
    policy: str
    cache: str
    replicate: int

    @property
    def path(self) -> str:
        """Folder of the cell below ``results/{run}/``."""
        return f"{self.experiment}/{self.policy}/{self.cache}/{self.replicate}"

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class Settings:
    """A validated configuration: every key present, the scale applied."""

    values: dict

    def __getitem__(self, key: str):
        return self.values[key]

    @cached_property
    def run(self) -> str:
        """Name of the evidence set: the chosen one, or `current`, `current-quick`, ..."""
        if self.values["run"]:
            return self.values["run"]
        scale = self.values["scale"]
        return "current" if scale == "full" else f"current-{scale}"

    @property
    def python(self) -> str:
        """Interpreter of the measured processes."""
        return self.values["python"] or sys.executable

    def experiment(self, name: str) -> dict:
        """The experiment's entry; UsageProblem names the known ones if there is none."""
        if name not in self.values["experiments"]:
            known = ", ".join(self.values["experiments"])
            raise UsageProblem(f"unknown experiment '{name}': config.yaml has {known}")
        return self.values["experiments"][name]

    def cells(self, *experiments: str) -> list[Cell]:
        """Every cell of the named experiments (all without a name), in the order in which they are measured.

        An experiment's cells stand together, replicate by replicate, so that drift of the machine falls on
        all its policies alike. A warm cell follows its cold one at once, so that both see the same machine.
        """
        return [
            Cell(name, policy, cache, replicate)
            for name in (experiments or self.values["experiments"])
            for replicate in range(1, self.experiment(name)["replicates"] + 1)
            for policy, caches in self.experiment(name)["policies"].items()
            if replicate == 1 or policy not in self.experiment(name)["once"]
            for cache in sorted(caches, key=("none", "cold", "warm").index)
        ]

    def check_cell(self, cell: Cell) -> None:
        """UsageProblem unless config.yaml gives this policy this cache state."""
        policies = self.experiment(cell.experiment)["policies"]
        if cell.policy not in policies:
            raise UsageProblem(
                f"{cell.experiment}: unknown policy '{cell.policy}'; choose from {', '.join(policies)}"
            )
        if cell.cache not in policies[cell.policy]:
            raise UsageProblem(
                f"{cell.experiment}: policy '{cell.policy}' has no cache state '{cell.cache}'; "
                f"choose from {', '.join(policies[cell.policy])}"
            )

    def measured_slice(self, experiment: str, device: str) -> dict:
        """What decides the measurements of this experiment's cells; plain JSON values.

        ``device`` is the resolved one, cpu or cuda. A stream's name is replaced by its lengths.
        """
        entry = self.experiment(experiment)
        settings = dict(entry["settings"])
        if "stream" in settings:
            settings["lengths"] = self.values["streams"][settings.pop("stream")]
        chosen = {key: self.values[key] for key in MEASURED_KEYS}
        chosen |= {"device": device, "settings": settings}
        chosen["workload"] = chosen["workload"] | entry["workload"]
        chosen |= {key: entry[key] for key in ("probes", "observers", "steady_rounds", "steady_caches")}
        return json.loads(json.dumps(chosen))


def read_yaml(path: Path) -> object:
    """What a YAML file holds; OSError, UnicodeDecodeError or yaml.YAMLError if it cannot be read."""
    return yaml.load(path.read_text(encoding="utf-8"), LOADER)


def load(path: Path = CONFIG_FILE, overrides: dict | None = None) -> Settings:
    """Settings of a configuration file with ``overrides`` laid over it.

    Raises UsageProblem, one line naming file and key, for anything unreadable or invalid.
    """
    try:
        given = read_yaml(Path(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageProblem(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(given, dict):
        raise UsageProblem(f"{path}: holds no keys; start from the config.yaml that comes with complab")
    settings = resolve(given, where=Path(path).name, overrides=overrides)
    written = {script.stem for script in (PROJECT / "scripts").glob("e[0-9]*_*.py")}
    if lacking := sorted(written - set(given["experiments"])):
        raise UsageProblem(
            f"{Path(path).name}: scripts/{lacking[0]}.py has no entry under experiments; "
            "add one, or remove the script"
        )
    return settings


def resolve(given: dict, where: str = "config.yaml", overrides: dict | None = None) -> Settings:
    """Settings of a configuration dict: scale applied, overrides laid over it, defaults filled, checked."""
    overrides = overrides or {}
    given = _overlay(given, overrides)
    schema = read_yaml(SCHEMA_FILE)
    checked: list[dict] = []

    def check(values: dict, named: str) -> None:
        # A scale that changes nothing is the configuration itself, and checking takes longest of all here.
        if values not in checked:
            validate(values, schema, named)
            checked.append(values)

    check(given, where)
    scale = given.get("scale", schema["properties"]["scale"]["default"])
    scales = given.get("scales", {"full": {}})
    if scale not in scales:
        raise UsageProblem(f"{where}: unknown scale '{scale}'; choose from {', '.join(scales)}")
    for name, changes in scales.items():
        if forbidden := {"scale", "scales", "run"} & set(changes):
            raise UsageProblem(f"{where}: scales.{name} may not set '{min(forbidden)}'")
        if unknown := set(changes.get("experiments", {})) - set(given["experiments"]):
            key = f"scales.{name}.experiments.{min(unknown)}"
            raise UsageProblem(f"{where}: {key}: there is no such experiment; remove it here too")
        check(_overlay(given, changes), f"{where} at scale {name}")
    scaled = _overlay(_overlay(given, scales[scale]), overrides)
    check(scaled, f"{where} at scale {scale}")
    values = _with_defaults(scaled, schema)
    del values["scales"]
    _check_sense(values, where)
    return Settings(values)


def overrides_between(plain: dict, merged: dict) -> dict:
    """What of ``merged`` differs from ``plain``, key by key: what a command line has changed."""
    changed = {}
    for key, value in merged.items():
        if isinstance(value, dict) and isinstance(plain.get(key), dict):
            if inner := overrides_between(plain[key], value):
                changed[key] = inner
        elif key not in plain or plain[key] != value:
            changed[key] = value
    return changed


def _overlay(base: dict, top: dict) -> dict:
    merged = dict(base)
    for key, value in top.items():
        both_dicts = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _overlay(merged[key], value) if both_dicts else value
    return merged


def _with_defaults(value, schema: dict):
    if not isinstance(value, dict):
        return value
    known = schema.get("properties", {})
    extra = schema.get("additionalProperties")
    filled = {key: sub["default"] for key, sub in known.items() if key not in value and "default" in sub}
    filled |= value
    return {
        key: _with_defaults(item, known.get(key, extra if isinstance(extra, dict) else {}))
        for key, item in filled.items()
    }


def validate(values: dict, schema: dict, where: str) -> None:
    """UsageProblem, one line naming ``where`` and the key, for values that break a schema."""
    validator = jsonschema.Draft202012Validator(schema)
    error = jsonschema.exceptions.best_match(validator.iter_errors(values))
    if error is None:
        return
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        unknown = next(name for name in error.instance if name not in known)
        guess = difflib.get_close_matches(unknown, known, n=1)
        hint = f"did you mean '{guess[0]}'?" if guess else f"known keys: {', '.join(known)}"
        raise UsageProblem(f"{where}: unknown key '{f'{key}.{unknown}'.lstrip('.')}'; {hint}")
    raise UsageProblem(f"{where}: {key.lstrip('.') or 'top level'}: {' '.join(error.message.split())}")


def _check_sense(values: dict, where: str) -> None:
    workload = values["workload"]
    _check_heads(workload, f"{where}: workload")
    for name, lengths in values["streams"].items():
        for index, length in enumerate(lengths):
            if length > workload["max_length"]:
                raise UsageProblem(
                    f"{where}: streams.{name}[{index}]: length {length} is beyond the position table "
                    f"(workload.max_length {workload['max_length']}); raise max_length or shorten the request"
                )
    targets: dict[str, str] = {}
    for name, entry in values["experiments"].items():
        _check_experiment(name, entry, values, where)
        twin = targets.setdefault(name.split("_")[0], name)
        if twin != name:
            raise UsageProblem(f"{where}: experiments.{name}: has the number of {twin}; give it another")
    for name, told in values["ledgers"].items():
        policies = values["experiments"].get(told["experiment"], {}).get("policies")
        if policies is not None and told["policy"] not in policies:
            raise UsageProblem(
                f"{where}: ledgers.{name}.policy: {told['experiment']} has no policy '{told['policy']}'; "
                f"choose from {', '.join(policies)}"
            )
    if " " in values["scratch"]:
        raise UsageProblem(
            f"{where}: scratch: '{values['scratch']}' has a space, which C++ compilers called by Inductor "
            "do not survive; choose a path without spaces"
        )
    # Not realpath: two venvs of one base interpreter are two environments.
    other = values["python"] and os.path.abspath(values["python"]) != os.path.abspath(sys.executable)
    if other and (not values["run"] or values["run"].startswith("current")):
        raise UsageProblem(
            f"{where}: python: another interpreter needs a run name of its own; add run=NAME (not current*)"
        )


def _check_heads(workload: dict, named: str) -> None:
    if workload["dim"] % workload["heads"]:
        raise UsageProblem(
            f"{named}.dim {workload['dim']} is not a multiple of {named.rpartition(' ')[2]}.heads "
            f"{workload['heads']}"
        )


def _check_experiment(name: str, entry: dict, values: dict, where: str) -> None:
    _check_heads(values["workload"] | entry["workload"], f"{where}: experiments.{name}.workload")
    if not (PROJECT / "scripts" / f"{name}.py").is_file():
        raise UsageProblem(f"{where}: experiments.{name}: scripts/{name}.py does not exist; write it first")
    stream = entry["settings"].get("stream")
    if stream is not None and stream not in values["streams"]:
        raise UsageProblem(
            f"{where}: experiments.{name}.settings.stream: no stream '{stream}'; "
            f"choose from {', '.join(values['streams'])}"
        )
    for table, told in entry["exhibit"]["tables"].items():
        for column, spec in told["columns"].items():
            if spec["against"] and spec["against"] not in entry["policies"]:
                raise UsageProblem(
                    f"{where}: experiments.{name}.exhibit.tables.{table}.columns.{column}.against: "
                    f"no policy '{spec['against']}'; choose from {', '.join(entry['policies'])}"
                )
    observed = entry["observers"]
    if (OBSERVERS in entry["policies"]) != bool(observed) or (observed and CONTROL not in observed):
        raise UsageProblem(
            f"{where}: experiments.{name}.observers: observers belong to a policy named {OBSERVERS}, "
            f"and are held against one named {CONTROL}; give all three or none"
        )
    for policy in entry["once"]:
        if policy not in entry["policies"]:
            raise UsageProblem(
                f"{where}: experiments.{name}.once: no policy '{policy}'; "
                f"choose from {', '.join(entry['policies'])}"
            )
    if entry["exhibit"]["trace"] and "trace" not in entry["probes"]:
        raise UsageProblem(
            f"{where}: experiments.{name}.exhibit.trace: only a process under the probe 'trace' leaves one; "
            "add it to probes"
        )
    for policy, caches in entry["policies"].items():
        if policy == "eager" and caches != ["none"]:
            raise UsageProblem(
                f"{where}: experiments.{name}.policies.eager: eager compiles nothing, "
                "so its only cache state is none"
            )
        if "none" in caches and len(caches) > 1:
            raise UsageProblem(
                f"{where}: experiments.{name}.policies.{policy}: none excludes the other cache states"
            )
        if "warm" in caches and "cold" not in caches:
            raise UsageProblem(
                f"{where}: experiments.{name}.policies.{policy}: warm needs cold, whose sealed cache it reads"
            )
