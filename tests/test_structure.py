"""Structural claims hold in the committed reference run, and in a run that was just made."""

import pytest

from complab import bundle, config
from complab.config import PROJECT
from structure import CLAIMS, Run, fates, static_fates

REFERENCE = "torch-2.13-cpu"


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
