"""FLOPs that a traced backward of an architecture executes are those that torch counts around the bare one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.counting import bare, require_counted_as_torch_counts, traced
from tests.sweep.architectures import ARCHITECTURES
from tests.sweep.test_architectures import ONLY_FORWARD, RAISING_BACK

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - ONLY_FORWARD))
def test_executed_flops_are_those_of_the_bare_backward(name: str) -> None:
    def build() -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        model, kwargs = ARCHITECTURES[name].build()
        return model, (), kwargs

    try:
        right = bare(build)
    except RuntimeError:
        assert type(ARCHITECTURES[name].build()[0]).__name__ in RAISING_BACK
        return
    assert right is not None
    trace = traced(build)
    require_counted_as_torch_counts(trace, right)
    trace.cleanup()
