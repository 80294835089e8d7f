"""What goes wrong over events is told of the events, but for what has nothing to do with them."""

from __future__ import annotations

import pytest

from journal.errors import JournalCorrupt
from projections.errors import FAULTS, over_events


@pytest.mark.parametrize("fault", FAULTS)
def test_what_python_raises_over_events_is_told_of_them(fault: type[Exception]) -> None:
    with pytest.raises(JournalCorrupt) as refused, over_events():
        raise fault("odd")
    assert refused.value.code == "events_contradictory"


@pytest.mark.parametrize(
    "raised", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes")]
)
def test_the_want_of_memory_passes_as_it_is(raised: Exception) -> None:
    with pytest.raises(type(raised)) as passed, over_events():
        raise raised
    assert passed.value is raised
