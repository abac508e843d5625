"""Does the compiled output agree with eager, at a stated tolerance?"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Agreement:
    """Largest absolute difference of two outputs (NaN if either has one), within tolerance, bitwise."""

    max_abs_diff: float
    within: bool
    bitwise: bool


def agreement(expected, actual, tolerance: dict) -> Agreement:
    """Compare two tensors; |actual - expected| <= atol + rtol * |expected| must hold everywhere."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return Agreement(float("nan"), False, False)
    difference = (actual - expected).abs().max().item()
    within = torch.allclose(actual, expected, rtol=tolerance["rtol"], atol=tolerance["atol"])
    return Agreement(difference, within, torch.equal(actual, expected))
