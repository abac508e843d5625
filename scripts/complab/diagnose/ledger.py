"""What does a diagnosis say in the end? One ledger, filled level by level, as data, text and Markdown."""

import math

from complab import mechanisms
from complab.diagnose import capture, cost, interventions, outcomes
from complab.diagnose.case import Case
from complab.diagnose.judgement import FAIL, LEVELS, NO_EVIDENCE, NOT_JUDGED, PASS, Judgement
from complab.diagnose.lab import Noted
from complab.errors import counted
from complab.report.escaping import markdown as escaped

SCHEMA = 1
JUDGES = {
    "RUNS": outcomes.runs,
    "CORRECT": outcomes.correct,
    "CAPTURED": lambda case: capture.captured(case.calls),
    "STABLE": lambda case: capture.stable(case.calls, case.moved),
    "WORTH IT": cost.worth_it,
}
# 10 and the level's number when one fails; 10 alone when one lacks evidence.
EXIT_NO_EVIDENCE = 10


def fill(case: Case, say) -> dict:
    """Judge level by level, stop at the first that fails, and test its cause.

    A level without evidence leaves the later ones to be judged, but for RUNS: what did not run tells nothing.
    """
    judged: dict[str, Judgement] = {}
    for level, judge in JUDGES.items():
        judged[level] = judge(case)
        say(f"{level}: {judged[level].verdict}")
        if judged[level].verdict == FAIL or judged["RUNS"].verdict != PASS:
            break
    failing = next((level for level, each in judged.items() if each.verdict == FAIL), None)
    lacking = next((level for level, each in judged.items() if each.verdict == NO_EVIDENCE), None)
    last = failing or lacking or level
    decisive = judged[last]
    if failing == "CAPTURED" and not case.quick:
        decisive.facts |= instruments(case)
    intervention = {"changed": "", "before": "", "after": "", "verdict": "not needed"}
    if failing and case.quick:
        intervention["verdict"] = "not tried (--quick)"
    elif failing:
        intervention = interventions.run(case, failing, decisive)
    place = decisive.place
    return {
        "schema": SCHEMA,
        "first_failing_level": failing,
        "mechanism": decisive.mechanism if failing else None,
        "sentence": _sentence(last, decisive),
        "evidence": {
            "text": decisive.evidence,
            "file": place.file if place else None,
            "line": place.line if place else None,
            "source": place.source if place else None,
            "instrument": decisive.instrument,
        },
        "levels": [_level(level, judged.get(level)) for level in LEVELS],
        "stability": capture.stability(case.calls, case.moved),
        "cost": _cost(case, judged),
        "intervention": intervention,
        "stream": _stream(case),
        "quick": case.quick,
        "problem": "",
    }


def undiagnosed(subject: dict, problem: str) -> dict:
    """The ledger of a subject that could not be diagnosed: no level is judged, and the problem says why."""
    return {
        "schema": SCHEMA,
        "first_failing_level": None,
        "mechanism": None,
        "sentence": f"not diagnosed: {problem}",
        "evidence": {"text": problem, "file": None, "line": None, "source": None, "instrument": "complab"},
        "levels": [_level(level, Judgement(NOT_JUDGED, "the subject was not diagnosed")) for level in LEVELS],
        "stability": {"calls": 0, "fates": {}, "failed": []},
        "cost": {},
        "intervention": {"changed": "", "before": "", "after": "", "verdict": NOT_JUDGED},
        "stream": [],
        "quick": False,
        "problem": problem,
        "subject": subject
        | {"model": "", "is_module": False, "options": {}, "trains": False, "real_calls": None},
        "environment": {"torch": None},
        "processes": [],
    }


def instruments(case: Case) -> dict:
    """What the other instruments say of the call that broke; where they disagree, that is shown."""
    calls = case.stream.calls
    index = next((line["call"] for line in calls if line.get("breaks") or line.get("skipped")), 0)
    run = {"kind": "captured", "label": "captured", "call": index, "lines": capture.break_lines(case.calls)}
    noted = case.lab.process([run]).runs.get("captured", Noted())
    explain, fullgraph = noted.first("explain", {}), noted.first("fullgraph", {})
    counts = noted.first("lines", [])
    told = {}
    if explain:
        told["explain"] = explain.get("raises") or (
            f"{counted(explain['graphs'], 'graph')}, {counted(explain['breaks'], 'break')}"
        )
    if fullgraph:
        refused = fullgraph.get("raises") or f"rejects: {fullgraph.get('error')}: {fullgraph.get('message')}"
        told["fullgraph"] = "accepts" if fullgraph.get("accepts") else refused
    if isinstance(counts, list):
        told["times the line runs per call"] = {f"{file}:{line}": count for file, line, count in counts}
    eager, compiled = _later_seconds(calls)
    if eager and compiled:
        told["a later call against eager"] = compiled / eager
    return told


def _later_seconds(calls: list[dict]) -> tuple[float, float]:
    """Median seconds of a call that compiled nothing, eager and compiled."""
    later = [line["seconds"] for line in calls if line.get("kept") == 0 and not line.get("error")]
    if not later:
        return 0.0, 0.0
    middle = len(later) // 2
    return tuple(sorted(each[actor] for each in later)[middle] for actor in ("eager", "compiled"))


def _cost(case: Case, judged: dict[str, Judgement]) -> dict:
    if "WORTH IT" in judged:
        return judged["WORTH IT"].facts
    return cost.cost(case, [], None)


def _stream(case: Case) -> list[dict]:
    """Each call's seconds and fate, for the picture."""
    return [
        {
            "call": line["call"],
            "eager_s": line["seconds"]["eager"],
            "compiled_s": line["seconds"]["compiled"],
            "fate": line.get("fate", "eager"),
        }
        for line in case.stream.calls
        if "compiled" in line.get("seconds", {})
    ]


def _level(level: str, judged: Judgement | None) -> dict:
    if judged is None:
        judged = Judgement(NOT_JUDGED, "an earlier level did not pass")
    return {
        "level": level,
        "verdict": judged.verdict,
        "evidence": judged.evidence,
        "mechanism": judged.mechanism,
        "instrument": judged.instrument,
        "facts": judged.facts,
    }


def _sentence(level: str, judged: Judgement) -> str:
    if judged.verdict == FAIL:
        return f"{level} fails, {judged.mechanism}: {judged.evidence}"
    if judged.verdict == NO_EVIDENCE:
        return f"{level} has no evidence: {judged.evidence}"
    return "every level passes"


def exit_code(ledger: dict) -> int:
    """0 when every level passes, 10 and the level's number when one fails, 10 when one lacks evidence."""
    failing = ledger["first_failing_level"]
    if failing:
        return 10 + LEVELS.index(failing) + 1
    return EXIT_NO_EVIDENCE if any(each["verdict"] == NO_EVIDENCE for each in ledger["levels"]) else 0


def finite(value: object) -> object:
    """The value as JSON can hold it: what is never reached is told as "never"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "never" if value > 0 else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


MARKS = {PASS: "+", FAIL: "x", NO_EVIDENCE: "?", NOT_JUDGED: "."}


def text(ledger: dict) -> str:
    """The ledger for a terminal: the ladder, then mechanism, evidence, cost and intervention."""
    lines = [f"{ledger['subject']['name']}  (torch {ledger['environment']['torch']})", ""]
    for each in ledger["levels"]:
        lines.append(f"  {MARKS[each['verdict']]} {each['level']:9} {each['verdict']:11}  {each['evidence']}")
    lines.append("")
    for name, told in _told(ledger):
        lines.append(f"{name + ':':14}{told}")
    return "\n".join(lines) + "\n"


def _told(ledger: dict) -> list[tuple[str, str]]:
    found = []
    word = ledger["mechanism"]
    if word:
        found.append(("mechanism", f"{word}: {mechanisms.WORDS[word].meaning}"))
    evidence = ledger["evidence"]
    found.append(("evidence", f"{evidence['text']} [{evidence['instrument']}]"))
    if evidence["file"]:
        found.append(("line", f"{evidence['file']}:{evidence['line']}: {evidence['source']}"))
    if told := _told_cost(ledger["cost"]):
        found.append(("cost", told))
    done = ledger["intervention"]
    if done["changed"]:
        found.append(("intervention", f"{done['changed']}: {done['before']} -> {done['after']}"))
    found.append(
        ("tested", done["verdict"] + (f": {done['after']}" if not done["changed"] and done["after"] else ""))
    )
    return found


def _told_cost(told: dict) -> str:
    parts = [f"{key} {cost.seconds(told[key])}" for key in told if key.startswith("first call")]
    if "steady ratio" in told:
        ratio = told["steady ratio"]
        parts.append(f"steady state {ratio['estimate']:.2f} of eager")
    for key in told:
        if key.startswith("break-even"):
            value = told[key]["estimate"]
            parts.append(f"{key} {value if isinstance(value, str) else f'{value:.0f}'}")
    return "; ".join(parts)


def markdown(ledger: dict) -> str:
    """The ledger as a page of Markdown."""
    title = f"{ledger['subject']['name']}: {ledger['sentence'].partition(':')[0]}"
    rows = [
        f"| {each['level']} | {each['verdict']} | {escaped(each['evidence'])} |" for each in ledger["levels"]
    ]
    parts = [
        f"# {escaped(title, in_table=False)}",
        "",
        "| Level | Verdict | Evidence |",
        "|---|---|---|",
        *rows,
        "",
        *(f"- **{name}**: {escaped(told, in_table=False)}" for name, told in _told(ledger)),
        "",
        _calls(ledger),
    ]
    return "\n".join(parts) + "\n"


def _calls(ledger: dict) -> str:
    told = ledger["stability"]
    fates = ", ".join(f"{name} {count}" for name, count in told["fates"].items())
    return f"{counted(told['calls'], 'call')}: {fates or 'none compiled'}."


HEADINGS = ("Region", "Correct", "Captured", "Stable", "Cost", "Contract")


def prompt(ledger: dict) -> str:
    """The evidence under six headings, ready to be pasted for an assistant; nothing is added to it."""
    levels = {each["level"]: each for each in ledger["levels"]}
    subject = ledger["subject"]
    options = ", ".join(f"{key}={value!r}" for key, value in subject["options"].items()) or "no options"
    bodies = {
        "Region": f"{subject['model']} in {subject['name']}, torch.compile with {options}; "
        f"torch {ledger['environment']['torch']}. RUNS: {_of(levels['RUNS'])}",
        "Correct": _of(levels["CORRECT"]),
        "Captured": _of(levels["CAPTURED"]) + _facts(levels["CAPTURED"]),
        "Stable": _of(levels["STABLE"]) + _failed(ledger["stability"]),
        "Cost": f"{_of(levels['WORTH IT'])}. {_told_cost(ledger['cost'])}".rstrip(" ."),
        "Contract": _contract(ledger),
    }
    return "\n\n".join(f"## {name}\n{bodies[name]}" for name in HEADINGS) + "\n"


def _of(level: dict) -> str:
    return f"{level['verdict']}: {level['evidence']}"


def _facts(level: dict) -> str:
    told = [f"{key}: {value}" for key, value in level["facts"].items() if key != "reason"]
    return "".join(f"\n- {each}" for each in told)


def _failed(stability: dict) -> str:
    return "".join(f"\n- {each['guard']} failed {each['times']} times" for each in stability["failed"][:5])


def _contract(ledger: dict) -> str:
    told = ledger["sentence"]
    done = ledger["intervention"]
    if done["changed"]:
        told += f"\n- tested: {done['changed']}: before {done['before']}, after {done['after']}"
        told += f": {done['verdict']}"
    lacking = next((each["level"] for each in ledger["levels"] if each["verdict"] != PASS), None)
    return told + (f"\n- first level that lacks evidence of holding: {lacking}" if lacking else "")
