"""A metric's name tells its unit, so a value in another unit cannot be recorded."""

import pytest

from complab import units
from complab.evidence import Row

CELL = {"experiment": "e1_opening_failure", "policy": "static", "cache": "cold", "replicate": 1}


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("compiled_time", "s"),
        ("first_call", "s"),
        ("steady_control", "s"),
        ("stage_aot_autograd", "s"),
        ("peak_memory", "bytes"),
        ("within_tolerance", "1"),
        ("fullgraph_accepts", "1"),
        ("graphs_captured", "graphs"),
        ("my_own_metric", "1"),
    ],
)
def test_the_unit_that_the_name_tells_is_accepted(metric, unit):
    assert units.problem(metric, unit) == ""


@pytest.mark.parametrize(
    ("metric", "unit", "told"),
    [
        ("compiled_time", "ms", "compiled_time is recorded in 'ms'; its unit is 's'"),
        ("first_call", "1", "first_call is recorded in '1'; its unit is 's'"),
        ("peak_memory_growth", "MiB", "peak_memory_growth is recorded in 'MiB'; its unit is 'bytes'"),
        ("within_tolerance", "calls", "within_tolerance is recorded in 'calls'; its unit is '1'"),
        ("graphs_captured", "Graph", "graphs_captured is recorded in 'Graph'"),
        ("my_own_metric", "ms", "my_own_metric is recorded in 'ms'"),
        ("my_own_metric", "", "my_own_metric is recorded in ''"),
    ],
)
def test_another_unit_is_refused_with_the_metrics_name(metric, unit, told):
    assert units.problem(metric, unit).startswith(told)
    with pytest.raises(ValueError, match=metric):
        Row(**CELL, case="model", call=0, metric=metric, value=1.0, unit=unit)
