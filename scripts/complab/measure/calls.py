"""What happened to one call of a compiled function: told by Dynamo's own state, never by the clock."""

import inspect
from dataclasses import dataclass

import torch

from complab.measure import dynamo

NEW_VARIANT = "new_variants"
REUSE = "reuses"
REFUSED = "refused_attempts"
EAGER = "eager_calls"
SKIPPED = "skipped_frames"

LABELS = {
    NEW_VARIANT: "new variant",
    REUSE: "reuse",
    REFUSED: "refused attempt",
    EAGER: "eager after the limit",
    SKIPPED: "frame skipped",
}


@dataclass(frozen=True)
class State:
    """Dynamo's state around a call: frames tried, frames compiled, variants kept."""

    tried: int
    compiled: int
    variants: int


def decide(before: State, after: State, accepted: bool) -> str:
    """The fate of the call between two states.

    ``accepted`` says whether a kept variant accepts the call's arguments. A kept variant more is a new
    variant, and so is one more compiled frame beside kept variants: that of a function resumed after a
    break. A frame tried and not compiled is a refused attempt, or a skipped frame where the code object
    has no variant at all. Nothing tried is a reuse if a variant accepts the arguments and an eager call
    if none does.
    """
    if after.variants > before.variants:
        return NEW_VARIANT
    if after.tried > before.tried:
        if not after.variants:
            return SKIPPED
        return NEW_VARIANT if after.compiled > before.compiled else REFUSED
    return REUSE if accepted else EAGER


class CallWatcher:
    """Tells the fate of each call of one compiled function or module.

    `before` and `after` go around the timed call; both only read, and the guards are asked after it.
    """

    def __init__(self, subject):
        self._module = subject if isinstance(subject, torch.nn.Module) else None
        self._function = type(subject).forward if self._module is not None else subject
        self._signature = inspect.signature(self._function)
        if dynamo.cache_entries(self._function.__code__) is None:
            raise RuntimeError(
                f"torch {torch.__version__} does not tell its cache entries: calls cannot be classified"
            )

    def before(self) -> State:
        """State to hand to `after`."""
        return State(*dynamo.frame_counts(), self.variants())

    def after(self, before: State, *arguments) -> str:
        """Fate of the call made with these arguments since ``before``, under the same grad mode."""
        after = self.before()
        return decide(before, after, self._accepted(arguments))

    def variants(self) -> int:
        """Variants Dynamo keeps of the subject's code object."""
        return len(dynamo.cache_entries(self._function.__code__))

    def _accepted(self, arguments: tuple) -> bool:
        given = (self._module, *arguments) if self._module is not None else arguments
        bound = self._signature.bind(*given)
        bound.apply_defaults()
        entries = dynamo.cache_entries(self._function.__code__)
        return any(dynamo.accepts(entry, dict(bound.arguments)) for entry in entries)
