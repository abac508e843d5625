"""Does the compiled output agree with eager, at a stated tolerance?"""

import ctypes
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Agreement:
    """Largest absolute difference of two outputs (NaN if either has one), within tolerance, bitwise."""

    max_abs_diff: float
    within: bool
    bitwise: bool


def content(tensor) -> bytes:
    """The bytes of a tensor's values in row-major order."""
    kept = tensor.detach().cpu().contiguous()
    return ctypes.string_at(kept.data_ptr(), kept.numel() * kept.element_size())


def agreement(expected, actual, tolerance: dict) -> Agreement:
    """Compare two tensors; |actual - expected| <= atol + rtol * |expected| must hold everywhere."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return Agreement(float("nan"), False, False)
    difference = (actual - expected).abs().max().item()
    within = torch.allclose(actual, expected, rtol=tolerance["rtol"], atol=tolerance["atol"])
    return Agreement(difference, within, torch.equal(actual, expected))
