"""How is a run told to an archive that knows nothing of complab? As a Workflow Run RO-Crate 0.5.

The crate describes every file of a bundle and has one action per cell, failed ones included. It says
nothing that the evidence does not say, so the same evidence gives the same crate to the byte.
"""

import datetime
import hashlib
import json
import shlex
from pathlib import PurePosixPath

from complab import attempts, evidence
from complab.evidence import Record

METADATA = "ro-crate-metadata.json"
RUN_FACTS = "run.json"
WORKFLOW, CONFIG = "Snakefile", "config.yaml"

# The profiles 0.5 extend RO-Crate 1.1; `rocrate` would take a later one by itself.
VERSION = "1.1"
CONTEXTS = [
    f"https://w3id.org/ro/crate/{VERSION}/context",
    "https://w3id.org/ro/terms/workflow-run/context",
]
STANDARD = f"https://w3id.org/ro/crate/{VERSION}"
WORKFLOW_PROFILE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    WORKFLOW_PROFILE: ("Workflow RO-Crate", "1.0"),
}
LICENSE = "https://spdx.org/licenses/MIT"
COMPLETED = "http://schema.org/CompletedActionStatus"
FAILED = "http://schema.org/FailedActionStatus"
WORKFLOW_TYPES = ["File", "SoftwareSourceCode", "ComputationalWorkflow"]

FORMATS = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".log": "text/plain",
    ".py": "text/x-python",
    ".yaml": "application/yaml",
}
DESCRIPTIONS = {
    evidence.EVIDENCE: "The facts that were measured, one per row",
    evidence.LEDGER: "The compilation ledger of each compiled region",
    evidence.TORCH_LOG: "What torch logged, one section per process, case and call",
    evidence.RUN_LOG: "What the measurement printed",
    evidence.TRACE_LOG: "The structured trace of one process",
    evidence.CACHE_MANIFEST: "The files of the sealed cache that the warm cell starts from",
    evidence.PROVENANCE: "Command, code, configuration, machine, cache verdict, hashes of the other files",
    attempts.FILE: "Every attempt of the run, each line chained to the one before by its hash",
    RUN_FACTS: "Name of the run, what was laid over config.yaml, and the cells that were planned",
    WORKFLOW: "The workflow that measures the cells, one process at a time",
    CONFIG: "Every choice: policies, cache states, sizes, seeds, tolerances, thresholds",
}


def describe(run: str, records: list[Record], files: dict[str, dict], told_by: dict[str, str]) -> str:
    """The crate's metadata as JSON text.

    ``files`` has the SHA-256 and the bytes of every file of the bundle by its name in it, ``told_by``
    the path of the cell that a log beside the cells tells of.
    """
    # Only whoever writes a bundle waits for the library.
    from rocrate.rocrate import ROCrate

    crate = ROCrate(version=VERSION)
    crate.metadata.extra_contexts.append(CONTEXTS[1])
    workflow = _file(WORKFLOW, files[WORKFLOW])
    if commit := _commit(records):
        workflow["version"] = commit
    crate.add_workflow(dest_path=WORKFLOW, main=True, lang="snakemake", properties=workflow)
    known = {record.cell.path for record in records}
    for name in sorted(files.keys() - {WORKFLOW}):
        about = {"about": {"@id": f"#{told_by[name]}"}} if told_by.get(name) in known else {}
        crate.add_file(dest_path=name, properties=_file(name, files[name]) | about)
    for record in sorted(records, key=lambda record: record.cell):
        _add_action(crate, run, record, files)
    _add_root(crate, run, records)
    return evidence.json_text(crate.metadata.generate())


def _commit(records: list[Record]) -> str:
    """The commit that all cells were measured at, empty if there is no such one or it was not clean."""
    states = {(code["commit"], code["dirty"]) for record in records for code in [record.provenance["code"]]}
    commit, dirty = next(iter(states))
    return commit if len(states) == 1 and commit and not dirty else ""


def _file(name: str, entry: dict) -> dict:
    """The properties of a file."""
    path = PurePosixPath(name)
    told = {
        "name": name,
        "sha256": entry["sha256"],
        "contentSize": str(entry["bytes"]),
        "encodingFormat": FORMATS.get(path.suffix, "text/plain"),
    }
    if path.name in DESCRIPTIONS:
        told["description"] = DESCRIPTIONS[path.name]
    return told


def _add_action(crate, run: str, record: Record, files: dict[str, dict]) -> None:
    """Tell of the measurement of a cell: what ran, on what, when, with what outcome and which files."""
    told, folder = record.provenance, f"{run}/{record.cell.path}"
    inputs = [CONFIG, f"scripts/{record.cell.experiment}.py"]
    if record.cell.cache == "warm":
        cold = f"{record.cell.experiment}/{record.cell.policy}/cold/{record.cell.replicate}"
        inputs.append(f"{run}/{cold}/{evidence.CACHE_MANIFEST}")
    properties = {
        "name": record.cell.path,
        "description": f"{shlex.join(told['argv'])} (attempt {told['attempt']}, {record.verdict})",
        "startTime": told["started"],
        "endTime": told["ended"],
        "agent": _agent(crate, told),
        "actionStatus": FAILED if record.failed else COMPLETED,
    }
    if record.failed:
        properties["error"] = told["failure"]["message"]
    if told["variables"]:
        variables = [_variable(crate, *pair) for pair in sorted(told["variables"].items())]
        properties["environment"] = _compact(variables)
    crate.add_action(
        crate.mainEntity,
        identifier=f"#{record.cell.path}",
        object=_compact([{"@id": name} for name in inputs if name in files]),
        result=_compact(
            [{"@id": f"{folder}/{name}"} for name in sorted([*told["files"], evidence.PROVENANCE])]
        ),
        properties=properties,
    )


def _agent(crate, told: dict) -> dict:
    """Who measured, by name only where the evidence has it."""
    user = told["environment"].get("machine", {}).get("user")
    identifier = f"#agent-{hashlib.sha256(user.encode()).hexdigest()[:12]}" if user else "#agent"
    return _entity(crate, identifier, "Person", name=user or "name not recorded")


def _variable(crate, name: str, value: str) -> dict:
    """An environment variable of a measured process; equal ones of different cells are one entity."""
    identifier = f"#variable-{name}-{hashlib.sha256(value.encode()).hexdigest()[:12]}"
    return _entity(crate, identifier, "PropertyValue", name=name, value=value)


def _entity(crate, identifier: str, kind: str, **properties: str) -> dict:
    """A reference to an entity that describes no file, which is added if it is not there yet."""
    if identifier not in crate:
        crate.add_jsonld({"@id": identifier, "@type": kind, **properties})
    return {"@id": identifier}


def _add_root(crate, run: str, records: list[Record]) -> None:
    root = crate.root_dataset
    failed = sum(record.failed for record in records)
    root["name"] = f"complab evidence, run {run}"
    root["description"] = (
        f"Measurements of torch.compile: {len(records)} cells, {failed} of them failed. Each has the rows it "
        "measured, its logs, and a record of command, code, configuration, machine and cache state."
    )
    # The clock of whoever bundles would make another file of the same evidence.
    root["datePublished"] = max(record.provenance["ended"] for record in records)
    root["license"] = _entity(crate, LICENSE, "CreativeWork", name="MIT License", url=LICENSE)
    root["conformsTo"] = [
        _entity(crate, profile, "CreativeWork", name=name, version=version)
        for profile, (name, version) in PROFILES.items()
    ]
    root["mentions"] = _compact(
        [{"@id": f"#{path}"} for path in sorted(record.cell.path for record in records)]
    )


def _compact(references: list[dict]) -> list[dict] | dict:
    """The only one of several references without a list around it, as the standard would have it."""
    return references[0] if len(references) == 1 else references


def problems(text: bytes, run: str, files: dict[str, dict]) -> list[str]:
    """What keeps a crate from being the one of a bundle with these files, one line each; none if nothing.

    ``files`` has the SHA-256 and the bytes of every other file of the bundle. This is no validator: it
    knows the shape that `describe` writes, and what the profiles ask of it.
    """
    try:
        return list(_problems(json.loads(text), run, files))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return [f"{METADATA} is no RO-Crate ({type(error).__name__}: {error})"]


def _problems(document: dict, run: str, files: dict[str, dict]):
    graph = document["@graph"]
    entities = {entity["@id"]: entity for entity in graph}
    if document["@context"] != CONTEXTS:
        yield f"@context is not that of RO-Crate {VERSION} and of workflow runs"
    if len(entities) != len(graph):
        yield "two entities have one @id"
    root = entities.get("./", {})
    yield from _problems_of_the_root(entities, root)
    yield from _problems_of_the_files(entities, root, files)
    yield from _problems_of_the_actions(entities, root, run, files)
    for entity in graph:
        for lacking in sorted(name for name in _references(entity) if name not in entities):
            if not lacking.startswith(("http://", "https://")):
                yield f"{entity['@id']} refers to {lacking}, which is not described"


def _problems_of_the_root(entities: dict[str, dict], root: dict):
    descriptor = entities.get(METADATA, {})
    if descriptor.get("@type") != "CreativeWork" or descriptor.get("about") != {"@id": "./"}:
        yield f"{METADATA} is not described as being about the bundle"
    if {STANDARD, WORKFLOW_PROFILE} - set(_ids(descriptor, "conformsTo")):
        yield f"{METADATA} does not conform to RO-Crate {VERSION} and Workflow RO-Crate 1.0"
    if root.get("@type") != "Dataset":
        yield "the bundle itself is not described as a Dataset"
    for key in ("name", "description", "datePublished", "license"):
        if not root.get(key):
            yield f"the bundle has no {key}"
    if not _is_time(root.get("datePublished")):
        yield "datePublished is no ISO 8601 time"
    for profile in PROFILES:
        known = entities.get(profile, {}).get("@type") == "CreativeWork"
        if profile not in _ids(root, "conformsTo") or not known:
            yield f"the bundle does not conform to {profile}"
    workflow = entities.get(next(iter(_ids(root, "mainEntity")), ""), {})
    if set(WORKFLOW_TYPES) - set(_types(workflow)):
        yield f"mainEntity is no {', '.join(WORKFLOW_TYPES)}"
    language = entities.get(next(iter(_ids(workflow, "programmingLanguage")), ""), {})
    if _types(language) != ["ComputerLanguage"]:
        yield "mainEntity tells no programmingLanguage"


def _problems_of_the_files(entities: dict[str, dict], root: dict, files: dict[str, dict]):
    described = {name for name, entity in entities.items() if "File" in _types(entity)}
    parts = _ids(root, "hasPart")
    if len(set(parts)) != len(parts) or set(parts) != described:
        yield "hasPart is not every described file once"
    if strange := sorted(described - files.keys()):
        yield f"{strange[0]} is described and not there"
    if strange := sorted(files.keys() - described):
        yield f"{strange[0]} is there and not described"
    for name in sorted(described & files.keys()):
        told = {key: entities[name].get(key) for key in ("sha256", "contentSize")}
        if told != {"sha256": files[name]["sha256"], "contentSize": str(files[name]["bytes"])}:
            yield f"{name} has not the sha256 and contentSize that it is described with"
        if not entities[name].get("encodingFormat"):
            yield f"{name} has no encodingFormat"


def _problems_of_the_actions(entities: dict[str, dict], root: dict, run: str, files: dict[str, dict]):
    cells = cells_in(files, run)
    actions = {name for name, entity in entities.items() if "CreateAction" in _types(entity)}
    if strange := sorted(actions ^ {f"#{cell}" for cell in cells}):
        yield f"{strange[0]}: not one action per cell"
    if sorted(_ids(root, "mentions")) != sorted(actions):
        yield "mentions is not every action once"
    for cell in sorted(cell for cell in cells if f"#{cell}" in actions):
        for problem in _problems_of_an_action(entities, entities[f"#{cell}"], cells[cell]):
            yield f"#{cell}: {problem}"


def _problems_of_an_action(entities: dict[str, dict], action: dict, files: list[str]):
    if _ids(action, "instrument") != _ids(entities["./"], "mainEntity"):
        yield "instrument is not the workflow"
    if sorted(_ids(action, "result")) != sorted(files):
        yield "result is not the files of the cell"
    if not _ids(action, "object"):
        yield "object names nothing that was used"
    if not all(_is_time(action.get(key)) for key in ("startTime", "endTime")):
        yield "startTime or endTime is no ISO 8601 time"
    agents = [_types(entities.get(name, {})) for name in _ids(action, "agent")]
    if agents not in ([["Person"]], [["Organization"]]):
        yield "agent is no person or organization"
    # Only a measured cell has rows.
    measured = any(name.endswith(f"/{evidence.EVIDENCE}") for name in files)
    if action.get("actionStatus") != (COMPLETED if measured else FAILED):
        yield "actionStatus is not what became of the cell"
    if bool(action.get("error")) == measured:
        yield "error is there exactly if the cell failed"
    for name in _ids(action, "environment"):
        variable = entities.get(name, {})
        if _types(variable) != ["PropertyValue"] or not {"name", "value"} <= variable.keys():
            yield f"environment names {name}, which is no variable with a value"


def cells_in(names, run: str) -> dict[str, list[str]]:
    """The files of each cell among the names of a bundle, by the path of the cell."""
    cells: dict[str, list[str]] = {}
    for name in names:
        parts = name.split("/")
        if parts[0] == run and len(parts) == 6:
            cells.setdefault("/".join(parts[1:5]), []).append(name)
    return cells


def _types(entity: dict) -> list[str]:
    return _listed(entity.get("@type", []))


def _ids(entity: dict, key: str) -> list[str]:
    """What an entity refers to under a key; a KeyError or TypeError if something there is no reference."""
    return [value["@id"] for value in _listed(entity.get(key, []))]


def _listed(value) -> list:
    return value if isinstance(value, list) else [value]


def _references(entity: dict) -> set[str]:
    values = [each for value in entity.values() for each in _listed(value)]
    return {value["@id"] for value in values if isinstance(value, dict)}


def _is_time(text: object) -> bool:
    try:
        datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return False
    return True
