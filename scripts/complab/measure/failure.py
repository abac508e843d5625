"""Why did a call raise, and did its compiled form raise for the same reason?"""

from collections.abc import Callable


def guarded(call: Callable[[], object]) -> tuple[object, Exception | None]:
    """What the call returned, or the exception it raised."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def tell(error: BaseException) -> str:
    """`ErrorClass: first line of the message`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])


def chain(error: BaseException) -> list[BaseException]:
    """The exception, what it was raised from or in the handling of, and so on to the root cause."""
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and all(following is not seen for seen in found):
        found.append(following)
        following = following.__cause__ or following.__context__
    return found


def same_cause(eager: BaseException, compiled: BaseException) -> bool:
    """Whether the compiled call raised because of what eager raises.

    torch.compile wraps an error of the traced code in its own, differently in every release, and keeps
    the error itself below. So the rule: of eager's class and with eager's message, somewhere in the chain.
    """
    return _identity(eager) in map(_identity, chain(compiled))


def _identity(error: BaseException) -> tuple[str, str]:
    return type(error).__name__, " ".join(str(error).split())
