"""Did a fact about capture, stability or caches get worse than an earlier ledger says?"""

from complab.diagnose.judgement import LEVELS

EXIT_WORSE = 20
# A larger number is worse.
COUNTS = (
    ("graphs compiled", lambda told: _captured(told, "graphs compiled")),
    ("breaks", lambda told: _captured(told, "breaks by the log")),
    ("frames skipped", lambda told: _captured(told, "frames skipped")),
    ("graphs in a later call", lambda told: _captured(told, "graphs in a later call")),
    ("recompiles", lambda told: told["stability"]["recompiles"]),
    ("variants", lambda told: told["stability"]["variants"]),
    ("calls run eager", lambda told: told["stability"]["calls run eager"]),
)


def _captured(told: dict, key: str):
    level = next(each for each in told["levels"] if each["level"] == "CAPTURED")
    return level["facts"].get(key)


def hold(expected: dict, told: dict, say) -> int:
    """Tell each fact that got worse; 20 if any did, else 0. Times are no facts of this kind."""
    worse = list(_worse(expected, told))
    for line in worse:
        say(f"worse: {line}")
    if not worse:
        say("nothing got worse")
    return EXIT_WORSE if worse else 0


def _worse(expected: dict, told: dict):
    before, after = expected["first_failing_level"], told["first_failing_level"]
    # WORTH IT is judged from times, which another day may decide otherwise.
    if after in LEVELS[:-1] and (before is None or LEVELS.index(after) < LEVELS.index(before)):
        yield f"first failing level: {before or 'none'} before, {after} now ({told['sentence']})"
    for name, count in COUNTS:
        was, now = count(expected), count(told)
        if was is not None and now is not None and now > was:
            yield f"{name}: {was} before, {now} now"
    yield from _lost_hits(expected, told)


def _lost_hits(expected: dict, told: dict):
    was, now = expected.get("cache"), told.get("cache")
    for name, hits in (was or {}).items():
        if now is not None and now.get(name, 0) < hits:
            yield f"{name}: {hits} before, {now.get(name, 0)} now"
