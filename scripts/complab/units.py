"""Which unit may a metric's value have?

Told by the metric's name, so that a time in milliseconds or a count in seconds cannot be recorded at all.
"""

import re

_BY_NAME = (
    (re.compile(r".*_time|first_call|steady_(eager|compiled|control)|stage_[a-z_]+"), "s"),
    (re.compile(r"peak_memory(_growth)?"), "bytes"),
    (
        re.compile(r"within_tolerance|bitwise_equal|max_abs_diff|same_cause|.*_(runs|raises|accepts|agrees)"),
        "1",
    ),
)
# What has no rule of its own is a ratio or flag, or a count of something: a plural noun.
_OTHER = re.compile(r"1|[a-z]+s")


def unit_of(metric: str) -> str | None:
    """The unit that the metric's name prescribes, None where it prescribes none."""
    return next((unit for names, unit in _BY_NAME if names.fullmatch(metric)), None)


def problem(metric: str, unit: str) -> str:
    """One line saying what is wrong with the unit, empty if nothing is."""
    expected = unit_of(metric)
    if expected is not None:
        return "" if unit == expected else f"{metric} is recorded in '{unit}'; its unit is '{expected}'"
    if _OTHER.fullmatch(unit) and unit not in ("ms", "us", "ns"):
        return ""
    return f"{metric} is recorded in '{unit}'; a unit is 's', 'bytes', '1' or what is counted, as in 'graphs'"
