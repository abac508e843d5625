"""What is torch.compile asked to do: about varying shapes, and by which backend?"""

import torch

from complab.errors import UsageProblem
from complab.measure import dynamo

SHAPE_POLICIES = {
    "static": {"dynamic": False},
    "default": {},
    "dynamic": {"dynamic": True},
    "mark-dynamic": {},
}
# Each goes one layer further than the one before: capture, AOTAutograd, code generation.
BACKEND_POLICIES = {
    "backend-eager": {"backend": "eager"},
    "backend-aot-eager": {"backend": "aot_eager"},
    "backend-inductor": {"backend": "inductor"},
}
COMPILED = SHAPE_POLICIES | BACKEND_POLICIES
# The other backends write no cache entry and read none.
CACHED_BACKENDS = ("inductor",)


def compile_with(policy: str, subject):
    """The subject under a policy; None for `eager`, which compiles nothing.

    Raises UsageProblem for a policy this module does not know.
    """
    if policy == "eager":
        return None
    if policy not in COMPILED:
        known = ", ".join(["eager", *COMPILED])
        raise UsageProblem(f"policy '{policy}' is not known; scripts/complab/measure/policies.py has {known}")
    return torch.compile(subject, **COMPILED[policy])


def prepare_input(policy: str, tokens, dimension: int):
    """The input as the policy wants it: `mark-dynamic` marks the one dimension that varies."""
    if policy == "mark-dynamic":
        dynamo.mark_dynamic(tokens, dimension)
    return tokens
