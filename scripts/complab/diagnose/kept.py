"""Does a kept ledger of a subject still tell of today's code, of the file as it is, and of this machine?"""

import json
from pathlib import Path

from complab.config import PROJECT
from complab.staleness import Plan, differences, file_digest

# Below a run's folder, beside its experiments.
FOLDER = "subjects"


def changed(told: dict, code: str) -> list[str]:
    """What is no longer as it was when the ledger was filled; ``code`` is the digest of today's code."""
    reasons = [] if told["code"] == code else ["code: diagnosed by other code than today's"]
    name = told["subject"]["name"]
    if told["subject"]["sha256"] != file_digest(str(PROJECT / name)):
        reasons.append(f"code: {name} is not what was diagnosed")
    return reasons


def why_stale(path: Path, name: str, plan: Plan, code: str) -> str:
    """One line saying why a subject must be diagnosed (again), empty if the ledger at ``path`` stands."""
    asked = plan.settings["subjects"][name]
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["problem"]:
            return f"the last diagnosis failed: {told['problem']}"
        was = {"subject": told["subject"]["name"], "quick": told["quick"]}
        reasons = [
            *differences("environment", told["environment"], plan.conditions),
            *differences("config", was, {key: asked[key] for key in was}),
            *changed(told, code),
        ]
    except FileNotFoundError:
        return "not diagnosed yet"
    except (ValueError, KeyError, TypeError) as error:
        return f"its ledger is none ({error})"
    return "; ".join(reasons)
