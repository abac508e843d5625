"""Structural claims hold in the committed reference run, and in a run that was just made."""

import csv

import pytest

from complab import bundle, config
from complab.config import PROJECT
from structure import CLAIMS, Run, fates, static_fates

REFERENCE = "torch-2.13-cpu"
COMMITTED = sorted(bundle.parent.name for bundle in (PROJECT / "figures").glob("torch-*/bundle.zip"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The cells of the committed bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    assert bundle.unpack(PROJECT / "figures" / REFERENCE / "bundle.zip", folder) == REFERENCE
    return Run(config.load(overrides={"run": REFERENCE}), folder)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_the_reference_run_holds(reference, claim):
    claim(reference)


def test_the_opening_failure_is_the_books(reference):
    lengths = reference.lengths("e1_opening_failure")
    assert (reference.limit, len(lengths), len(set(lengths))) == (8, 13, 12)
    for record in reference.of("e1_opening_failure", "static"):
        told = fates(record)
        assert told.count("new_variants") == 8
        assert (told.index("refused_attempts"), lengths[9]) == (9, 35)
        assert (told[6], lengths[6], lengths[4]) == ("reuses", 19, 19)
        assert told[10:] == ["eager_calls"] * 3


def test_expected_fates_follow_from_stream_and_limit():
    assert static_fates([4, 5, 4, 6, 7, 8, 5, 7, 4], 3) == [
        *("new_variants", "new_variants", "reuses", "new_variants", "refused_attempts"),
        *("eager_calls", "reuses", "eager_calls", "reuses"),
    ]


@pytest.mark.evidence
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_the_quick_run_just_made_holds(claim):
    claim(Run(config.load(overrides={"scale": "quick"}), PROJECT / "results"))


def judged(run: str) -> list[dict]:
    """The claims of a run as its exhibit tells them."""
    with open(PROJECT / "figures" / run / "claims.csv", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def unjudged(claims: list[dict]) -> dict[str, str]:
    """Structural claims that came to no verdict, by what kept them from it."""
    told = {claim["id"]: claim["reason"] for claim in claims if claim["class"] == "structural"}
    verdicts = {claim["id"]: claim["verdict"] for claim in claims}
    return {name: reason for name, reason in told.items() if verdicts[name] not in ("holds", "differs")}


@pytest.mark.evidence
def test_the_quick_run_just_made_judges_every_structural_claim_but_those_of_the_books_limit():
    claims = judged("current-quick")
    for name, reason in unjudged(claims).items():
        assert "needs a recompile limit of 8" in reason or "needs cuda" in reason, (name, reason)
    assert not [
        claim["id"] for claim in claims if claim["class"] == "structural" and "nexplained" in claim["reason"]
    ]


@pytest.mark.parametrize("run", COMMITTED)
def test_a_reference_run_judges_every_structural_claim_of_its_device(run):
    for name, reason in unjudged(judged(run)).items():
        assert "needs cuda" in reason, (name, reason)


@pytest.mark.parametrize("run", COMMITTED)
def test_what_differs_from_the_book_has_its_reason_and_nothing_does_on_the_books_release(run):
    told = [claim for claim in judged(run) if (claim["class"], claim["verdict"]) == ("structural", "differs")]
    for claim in told:
        assert "By design: since torch" in claim["reason"], claim["id"]
    assert not (told and "torch-2.6" in run)
