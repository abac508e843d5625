"""Is the program one graph, and does it stay one? The judges of CAPTURED and STABLE."""

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

from complab import guards, mechanisms
from complab.diagnose.judgement import FAIL, PASS, Judgement, Place
from complab.errors import counted, one_line

# Dynamo may need one recompile to see that a property moves, and one more for a size of 0 or 1.
WARM_UP = 2


@dataclass(frozen=True)
class Stream:
    """A compiled form's calls: a line of each in which something happened, how many there were, their fates.

    In ``lines`` a call that only reused a variant may be left out. ``graphs_run`` says whether each line
    tells how many graphs ran in the call, ``closure`` the variables that the compiled function closes over.
    """

    lines: list[dict]
    calls: int
    fates: Counter
    graphs_run: bool = True
    disabled: bool = False
    closure: frozenset[str] = frozenset()


def captured(stream: Stream) -> Judgement:
    """No break, no skipped frame, one graph in each call, by every instrument that was there."""
    if stream.disabled:
        return Judgement(
            FAIL, "nothing was compiled: the options disable it", "unsupported-call", "the options"
        )
    calls, facts = stream.lines, captured_facts(stream)
    if hidden := next((line for line in calls if line["modes"] and not line.get("runs")), None):
        modes = ", ".join(hidden["modes"])
        told = f"call {hidden['call']} runs under {modes}, so Dynamo skips its code object"
        return Judgement(FAIL, told, "dispatch-mode-active", "the stack of dispatch modes", facts=facts)
    if found := _breaks(calls):
        return _broken(found, facts)
    if skipped := [each for line in calls for each in line["skipped"]]:
        name, file, line, reason = skipped[0]
        told = f"Dynamo skipped {name}: {one_line(reason, 200) or 'no reason reported'}"
        word = mechanisms.of_break(reason)
        return Judgement(FAIL, told, word, "Dynamo's compilation metrics", Place(file, line, ""), facts)
    if told := _wrong_number(stream):
        return Judgement(
            FAIL, told, "unsupported-call", "graphs, counted where they are compiled", facts=facts
        )
    graphs = sum(line["graphs"] for line in calls)
    told = f"no break ({counted(graphs, 'graph')} for {counted(stream.calls, 'call')})"
    return Judgement(PASS, told, instrument="Dynamo's log and state, and graphs counted", facts=facts)


def _broken(found: list[tuple[Place, str, str]], facts: dict) -> Judgement:
    place, reason, label = found[0]
    # A break that was reported before is told without its source line.
    others = len({(each.file, each.line) for each, _, _ in found}) - 1
    told = f"graph break at {place.file}:{place.line}: {place.source} | {label}"
    told += f" (and at {counted(others, 'other place')})" if others else ""
    if facts["frames skipped"]:
        told += f"; {counted(facts['frames skipped'], 'frame')} given up"
    facts = {**facts, "reason": reason}
    return Judgement(FAIL, told, mechanisms.of_break(reason), "Dynamo's log", place, facts)


def _wrong_number(stream: Stream) -> str:
    """What is wrong with the number of graphs where no break was told, empty if nothing is."""
    if not sum(line["graphs"] for line in stream.lines):
        return f"no graph was compiled in {counted(stream.calls, 'call')}, and Dynamo says of no frame why"
    for line in stream.lines:
        if stream.graphs_run and line["fate"] == "reuse" and line["runs"] > 1:
            return f"{line['runs']} graphs run in call {line['call']}, and no break is logged"
    return ""


def captured_facts(stream: Stream) -> dict:
    """What the instruments counted of graphs, breaks and frames."""
    places = {(each[0], each[1]) for line in stream.lines for each in line["breaks"]}
    later = [line["runs"] for line in stream.lines if line["fate"] == "reuse" and stream.graphs_run]
    return {
        "graphs compiled": sum(line["graphs"] for line in stream.lines),
        "graphs in a later call": later[-1] if later else None,
        "breaks by the log": len(places),
        "frames skipped": sum(len(line["skipped"]) for line in stream.lines),
    }


def _breaks(calls: list[dict]) -> list[tuple[Place, str, str]]:
    """Each break's place, whole reason and first telling sentence, in the order of the log."""
    return [
        (Place(file, number, source), reason, _label(reason))
        for line in calls
        for file, number, source, reason, _ in line["breaks"]
    ]


def _label(reason: str) -> str:
    """The reason's first sentence that is about the program."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    generic = ("Encountered graph break when", "Failed to handle graph break")
    telling = [line for line in lines if not line.startswith(generic)]
    return one_line((telling or lines or [""])[0], 160)


def break_lines(stream: Stream) -> list[list]:
    """File and line of each place of a break."""
    found = _breaks(stream.lines)
    return [list(place) for place in dict.fromkeys((place.file, place.line) for place, _, _ in found)]


def stable(stream: Stream, moved: list[dict]) -> Judgement:
    """Recompiles recur, or the limit is reached: the assumption that keeps failing is the cause.

    Warm-up is no failure. The rule: at most two calls after the first recompile, or the stream goes on
    without another recompile for longer than the longest pause between two of them. A limit that is hit
    anywhere fails, however calm it is afterwards: what is refused is run eager without a word. ``moved`` are
    the properties of the program's inputs that took several values.
    """
    facts = stability(stream, moved)
    assumptions = _assumptions(stream)
    recompiling = facts["recompiling calls"]
    limited = next((line for line in stream.lines if line["limits"]), None)
    if limited:
        told = _limit(limited, facts)
    elif len(recompiling) > WARM_UP and not _settled(recompiling, stream.calls):
        told = f"{counted(len(recompiling), 'call')} of {stream.calls} recompile, the last is call "
        told += str(recompiling[-1])
    else:
        told = "no recompile"
        if recompiling:
            told = f"{counted(len(recompiling), 'recompile')}, the last at call {recompiling[-1]}"
            told += f" of {stream.calls}: warm-up"
        return Judgement(PASS, told, instrument="variants kept, call by call", facts=facts)
    word, worst, times = _worst(assumptions, moved)
    told += f": {worst} failed {counted(times, 'time')}" if worst else ""
    told += _moving(word, worst, moved)
    return Judgement(FAIL, told, word, "guards that failed, from Dynamo's log", facts=facts)


def _settled(recompiling: list[int], calls: int) -> bool:
    longest = max(after - before for before, after in pairwise(recompiling))
    return calls - 1 - recompiling[-1] > longest


def _limit(line: dict, facts: dict) -> str:
    setting, limit, function, _ = line["limits"][0]
    told = f"{setting} ({limit}) is hit by {function or 'a frame'} in call {line['call']}"
    eager = facts["calls run eager"]
    return told + (f", {counted(eager, 'call')} ran eager" if eager else "")


def stability(stream: Stream, moved: list[dict]) -> dict:
    """Calls, variants, recompiles, limit and fates of the stream, with what moved in it."""
    limits = [each for line in stream.lines for each in line["limits"]]
    eager = stream.fates["eager after the limit"] + stream.fates["refused attempt"]
    return {
        "calls": stream.calls,
        "variants": sum(line["kept"] for line in stream.lines),
        "recompiles": sum(len(line["recompiles"]) for line in stream.lines),
        "recompiling calls": [line["call"] for line in stream.lines if line["call"] > 0 and line["kept"]],
        "limit": limits[0][1] if limits else None,
        "calls run eager": eager,
        "share run eager": eager / stream.calls if stream.calls else 0.0,
        "fates": dict(stream.fates),
        "failed": _told_assumptions(_assumptions(stream)),
        "refused by each variant": next(
            (line["refusals"] for line in stream.lines if line.get("refusals")), None
        ),
        "moved": moved,
    }


def _assumptions(stream: Stream) -> list[guards.Assumption]:
    """The assumption of the newest variant that failed at each recompile, in order."""
    told = [
        guards.classify_guard(failures[0][1])
        for line in stream.lines
        for _, failures in line["recompiles"]
        if failures
    ]
    return [_of_closure(each) if _root(each.subject) in stream.closure else each for each in told]


def _root(subject: str) -> str:
    return re.match(r"\w*", subject)[0]


def _of_closure(assumption: guards.Assumption) -> guards.Assumption:
    """A guard on a variable that the function closes over prints as one on an argument."""
    own = assumption.kind in ("python-value", "input-type", "object-identity")
    return replace(assumption, kind="global-state") if own else assumption


def _told_assumptions(assumptions: list[guards.Assumption]) -> list[dict]:
    counts = Counter((each.kind, _without_values(each)) for each in assumptions)
    return [{"kind": kind, "guard": text, "times": times} for (kind, text), times in counts.most_common()]


def _without_values(assumption: guards.Assumption) -> str:
    return replace(assumption, expected=None, actual=None).describe()


def _worst(assumptions: list[guards.Assumption], moved: list[dict]) -> tuple[str, str, int]:
    """Mechanism and text of the assumption that fails most, and how often; what moved if none is logged."""
    known = [each for each in assumptions if each.kind != "other"]
    if known:
        kind = Counter(each.kind for each in known).most_common(1)[0][0]
        texts = Counter(_without_values(each) for each in known if each.kind == kind)
        return kind, *texts.most_common(1)[0]
    if moved:
        most = max(moved, key=lambda each: each["distinct"])
        return kind_of_move(most), f"{most['name']}: {most['property']} moved", most["distinct"] - 1
    return "object-identity", "", 0


_KINDS = {
    "rank": "shape",
    "dtype": "dtype",
    "device": "device",
    "requires_grad": "requires-grad",
    "layout": "stride",
    "length": "container-length",
    "keys": "container-length",
    "type": "input-type",
    "identity": "object-identity",
}


def kind_of_move(move: dict) -> str:
    """The mechanism by which a property that moves would make guards fail."""
    if move["place"] == "state":
        outside = move["name"].startswith(("global ", "closure "))
        return "global-state" if outside else "module-attribute"
    if move["place"] == "surroundings":
        return "grad-mode" if move["name"] == "grad mode" else "global-state"
    if move["property"].startswith("size"):
        return "shape"
    if move["property"] == "value" and "." in move["path"].partition("]")[2]:
        return "module-attribute"
    return _KINDS.get(move["property"], "python-value")


def _moving(word: str, worst: str, moved: list[dict]) -> str:
    """The property of that kind, with the values seen: the one that failed, or that took most values."""
    fitting = [each for each in moved if kind_of_move(each) == word]
    if not fitting:
        return ""
    # Dynamo names a value by its way from the frame, `moved` by its way from the model.
    failed = worst.partition(":")[0].rpartition(".")[2]
    told = max(
        fitting,
        key=lambda each: (
            each["name"].rpartition(".")[2] == failed,
            each["distinct"],
            each["property"] != "identity",
        ),
    )
    values = ", ".join(told["values"][:6]) + (", ..." if told["distinct"] > 6 else "")
    return f"; {told['name']} {told['property']} takes {counted(told['distinct'], 'value')}: {values}"
