"""What is torch.compile asked to do about varying shapes?"""

import torch

from complab.errors import UsageProblem
from complab.measure import dynamo

SHAPE_POLICIES = {
    "static": {"dynamic": False},
    "default": {},
    "dynamic": {"dynamic": True},
    "mark-dynamic": {},
}


def compile_with(policy: str, subject):
    """The subject under a shape policy; None for `eager`, which compiles nothing.

    Raises UsageProblem for a policy this module does not know.
    """
    if policy == "eager":
        return None
    if policy not in SHAPE_POLICIES:
        known = ", ".join(["eager", *SHAPE_POLICIES])
        raise UsageProblem(
            f"policy '{policy}' is no shape policy; scripts/complab/measure/policies.py has {known}"
        )
    return torch.compile(subject, **SHAPE_POLICIES[policy])


def prepare_input(policy: str, tokens, dimension: int):
    """The input as the policy wants it: `mark-dynamic` marks the one dimension that varies."""
    if policy == "mark-dynamic":
        dynamo.mark_dynamic(tokens, dimension)
    return tokens
