"""FLOPs that a traced backward of the zoo executes are those that torch's own counter counts around the bare one."""

from __future__ import annotations

import pytest

from tests.counting import bare, require_counted_as_torch_counts, traced
from tests.zoo.test_gradients import NAMES, Build, zoo

__all__ = ["zoo"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what the models' own packages warn of


@pytest.mark.parametrize("name", NAMES)
def test_executed_flops_are_those_of_the_bare_backward(zoo: dict[str, Build], name: str) -> None:  # a fixture
    right = bare(zoo[name])
    assert right is not None
    trace = traced(zoo[name])
    require_counted_as_torch_counts(trace, right)
    trace.cleanup()
