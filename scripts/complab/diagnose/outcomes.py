"""Does the compiled form run, and does it do what eager does? The judges of RUNS and CORRECT."""

import re

from complab import mechanisms
from complab.diagnose.case import Case, died, first_difference, first_error
from complab.diagnose.judgement import COMPILED, EAGER, FAIL, LAYERS, NO_EVIDENCE, PASS, Judgement, place_of
from complab.errors import EnvironmentProblem, Problem, counted

# A compiled output this many times as far from float64 as eager's is still rounding, not another result.
ROUNDING = 2
# From here on not one decimal digit of eager's own result is right.
MEANINGLESS = 0.1
# A difference this many times eager's own repeat is not eager's unrest.
REPEAT = 10
NO_DEVICE = (
    r"No CUDA GPUs are available|Found no NVIDIA driver|not compiled with (CUDA|XPU|MPS)"
    r"|CUDA is not available|deserialize object on a CUDA device|no NVIDIA"
    r"|(No|no) (HIP|XPU|MTIA) (GPUs|devices?) (are|is) available"
    r"|not linked with support for \w+ devices|invalid device ordinal|CUDA driver (version|initialization)"
)


def runs(case: Case) -> Judgement:
    """Eager first: a failure there is the program's own; else the first layer that fails names the cause."""
    if failed := first_error(case.eager, EAGER):
        return _eager_error(case, *failed)
    if failed := first_error(case.eager, "again"):
        index, error = failed
        told = f"call {index} raises {error['told']} in the second of two eager runs only"
        return Judgement(NO_EVIDENCE, told, instrument="eager, run twice", place=place_of(error["where"]))
    label, _ = case.first.last
    if case.first.died and label == "eager":
        return _died_in_eager(case)
    failed = first_error(case.stream, COMPILED)
    if case.first.died and not failed and not case.stream.first("streamed"):
        failed = (len(case.stream.calls), died(case.first))
    if failed and case.first.timed_out and not case.first.hung:
        told = f"after {counted(failed[0], 'compiled call')} the process {case.first.died}; raise --timeout"
        return Judgement(NO_EVIDENCE, told, instrument="the calls themselves")
    if failed:
        return _compiled_error(case, *failed)
    if failed := first_error(case.stream, EAGER):
        told = f"call {failed[0]} raises {failed[1]['told']} in one of three eager runs only"
        return Judgement(NO_EVIDENCE, told, instrument="eager, run again")
    calls = len(case.stream.calls)
    return Judgement(
        PASS, f"{counted(calls, 'compiled call')}, none raised", instrument="the calls themselves"
    )


def require_device(told: str) -> None:
    """EnvironmentProblem if what a subject raised says that it needs a device that is not there."""
    if re.search(NO_DEVICE, told):
        raise EnvironmentProblem(f"the subject needs a device that this machine does not offer: {told}")


def _eager_error(case: Case, index: int, error: dict) -> Judgement:
    require_device(" ".join(text for _, text in error["chain"]))
    told = f"call {index} raises in eager: {error['told']}"
    return Judgement(FAIL, told, "eager-error", "eager run", place_of(error["where"]))


def _died_in_eager(case: Case) -> Judgement:
    index = len(case.eager.calls)
    if case.first.timed_out:
        told = f"call {index} of the eager run hangs:" if case.first.hung else f"after {index} eager calls"
        told += f" the process {case.first.died}"
        raise Problem(f"subject: {told}; shorten the stream or raise --timeout")
    told = f"in call {index} of the eager run the process {case.first.died}"
    return Judgement(FAIL, told, "eager-error", "exit status of the process")


def _compiled_error(case: Case, index: int, error: dict) -> Judgement:
    names = [f"{name}: {text}" for name, text in error["chain"]]
    one_graph = bool(case.options.get("fullgraph")) or error["told"].startswith("Unsupported")
    word = mechanisms.of_error(names, one_graph)
    instrument, facts = "exception of the compiled call", {}
    if not word:
        layer, facts = _first_failing_layer(case, index, error)
        word, instrument = f"{layer}-error", "the same call under each backend"
    told = f"call {index} fails where eager runs: {_root(error)}"
    return Judgement(FAIL, told, word, instrument, place_of(error["where"]), facts)


def _root(error: dict) -> str:
    """The exception as the caller saw it, with its root cause where that is another one."""
    name, text = error["chain"][-1]
    return error["told"] if text[:60] in error["told"] else f"{error['told']} (from {name}: {text[:200]})"


def _first_failing_layer(case: Case, index: int, error: dict) -> tuple[str, dict]:
    """The first backend that fails at that call, and how each fared."""
    found, told = None, {}
    for name, noted in case.layers(index).items():
        failed = first_error(noted, COMPILED)
        told[name] = failed[1]["told"] if failed else "runs"
        # An earlier layer that fails for another cause has not failed here.
        if failed and found is None:
            found = LAYERS[name]
    told[case.backend] = error["told"]
    return found or LAYERS.get(case.backend, "inductor"), {"backends": told}


def correct(case: Case) -> Judgement:
    """Everything a call leaves behind, against eager; a difference is told apart by further runs."""
    if case.eager.first("unjudged"):
        where, name = next(each for each in case.restless if each[0] != "state")
        told = f"eager differs from itself: run again, the {_named(where, name)} is another"
        return Judgement(NO_EVIDENCE, told, instrument="eager against eager")
    different = first_difference(case.stream)
    if different is None:
        return _agreement(case)
    index, found = different
    control = first_difference(case.eager)
    if control and not _beyond(found, control[1]):
        told = f"eager differs from itself: {_told(control[1][0])}, so call {index} says nothing"
        return Judgement(NO_EVIDENCE, told, instrument="eager against eager")
    worst = found[0]
    told = f"call {index} differs in the {_named(worst['where'], worst['name'])}: {_told(worst)}"
    word, instrument, facts = _cause(case, index, found)
    facts["calls that differ"] = sum(not line.get("within", True) for line in case.stream.calls)
    return Judgement(FAIL, told, word, instrument, facts=facts)


def _agreement(case: Case) -> Judgement:
    compared = [line for line in case.stream.calls if not line.get("error")]
    largest = max((each["largest"] or 0.0 for line in compared for each in line["differences"]), default=0.0)
    bounds = case.subject["tolerance"]
    told = f"largest difference from eager {largest:.3g} in {counted(len(compared), 'call')}"
    told += f", within rtol {bounds['rtol']:g}, atol {bounds['atol']:g}"
    if any(not line.get("rng_same", True) for line in compared):
        told += "; the random streams advance differently, and nothing that was compared depends on it"
    if case.restless:
        told += f"; left out, for eager does not repeat it: the {_named(*case.restless[0])}"
        told += f" and {counted(len(case.restless) - 1, 'more value')}" if len(case.restless) > 1 else ""
    return Judgement(PASS, told, instrument="outputs, arguments, state and gradients against eager")


def _named(where: str, name: str) -> str:
    return f"{where} {name}".rstrip()


def _told(difference: dict) -> str:
    return difference["told"]


def _beyond(found: list[dict], control: list[dict]) -> bool:
    """Whether the compiled form differs by far more than eager does from itself."""
    if any(each["largest"] is None for each in control):
        return False
    if any(each["largest"] is None for each in found):
        return True
    return max(each["largest"] for each in found) > REPEAT * max(each["largest"] for each in control)


def _cause(case: Case, index: int, found: list[dict]) -> tuple[str, str, dict]:
    """Mechanism, deciding instrument and facts of a difference: random stream, layer, staleness, rounding."""
    if _draws(case, index) and case.backend == "inductor":
        settled = case.tried(
            "eager's random stream", settings={"inductor.fallback_random": True}, until=index
        )
        if settled.calls and first_difference(settled) is None and not first_error(settled, COMPILED):
            facts = {"with fallback_random": "no difference"}
            return "rng", "the same calls with eager's random stream", facts
    layers = case.layers(index)
    told = {name: _fared(noted, index) for name, noted in layers.items()}
    told[case.backend] = "differs"
    layer = next(
        (LAYERS.get(name, "inductor") for name, fared in told.items() if fared != "agrees"), "inductor"
    )
    facts = {"backends": told}
    if layer == "dynamo" and index > 0:
        fresh = case.tried("compiled anew", options={"backend": "eager"}, fresh_from=index, until=index)
        if _fared(fresh, index) == "agrees":
            facts["compiled anew before that call"] = "agrees"
            return "stale-specialization", "the same call with every variant forgotten", facts
    measurable = all(each["largest"] is not None for each in found) or _not_finite(found)
    if measurable and (word := _rounding(case, index, found, facts)):
        return word, "distance of eager and compiled from float64", facts
    return f"wrong-{layer}", "the same calls under each backend", facts


def _draws(case: Case, index: int) -> bool:
    return any(line.get("draws") for line in case.stream.calls[: index + 1])


def _fared(noted, index: int) -> str:
    if failed := first_error(noted, COMPILED):
        return f"raises {failed[1]['told']}"
    different = first_difference(noted)
    return "differs" if different and different[0] <= index else "agrees"


def _not_finite(found: list[dict]) -> bool:
    return any("nan" in each["told"] or "inf" in each["told"] for each in found)


def _rounding(case: Case, index: int, found: list[dict], facts: dict) -> str:
    """`ill-conditioned`, `low-precision`, or nothing where float64 tells neither."""
    names = [[each["where"], each["name"]] for each in found]
    run = {"kind": "precision", "label": "float64", "until": index, "names": names}
    # What was compiled before is found there: it is judged, not compiled anew.
    done = case.lab.process([run], "cache")
    noted = done.runs.get("float64")
    line = (
        next((each for each in noted.calls if each["call"] == index and "nudged" in each), None)
        if noted
        else None
    )
    if line is None:
        facts["float64"] = "no float64 run could be made"
        return ""
    eager, compiled, nudged = line["eager_error"], line["compiled_error"], line["nudged"]
    facts["from float64"] = {"eager": eager["absolute"], "compiled": compiled["absolute"]}
    facts["eager, inputs moved by their rounding"] = nudged["absolute"]
    if eager["unsized"] or eager["relative"] >= MEANINGLESS:
        return "ill-conditioned"
    if nudged["relative"] >= MEANINGLESS and nudged["absolute"] >= line["difference"]["absolute"] / ROUNDING:
        return "ill-conditioned"
    if compiled["absolute"] <= ROUNDING * eager["absolute"] and not compiled["unsized"]:
        return "low-precision"
    return ""
