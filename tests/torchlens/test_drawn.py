"""What torchlens.testing draws: journals and tensors, with and without torch and hypothesis."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import attrs
import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from torch import Tensor

import torchlens as tl
from journal import Journal, open_for_reading, verify
from journal.events import ForwardReturned
from tests.programs import run
from torchlens.testing import JournalDraft, capture_streams, check_journal, journals, tensors

# -- journals ------------------------------------------------------------------------------------------


def own_events(journal: Journal) -> dict[int, list[str]]:
    """Names of the events of each stream, without those that a branch reads from its parent."""
    return {
        int(info.stream): [
            item.event.event_name for item in journal.events(info.stream, info.opened.branched_at or 0, info.head)
        ]
        for info in journal.streams()
    }


@settings(max_examples=25)
@given(journals())
def test_a_journal_holds_on_disk_what_was_committed_of_what_it_has_in_memory(draft: JournalDraft) -> None:
    turns = draft.turns[: draft.killed]
    opened = list(dict.fromkeys(turns))  # streams are numbered as they are opened
    appended = own_events(draft.in_memory())
    assert {opened[stream]: len(names) for stream, names in appended.items()} == Counter(turns)
    with tempfile.TemporaryDirectory() as folder:
        journal = open_for_reading(draft.write(Path(folder) / "run.journal"))
        kept = own_events(journal)
        journal.close()
    assert all(names == appended[stream][: len(names)] for stream, names in kept.items())
    committed = turns if draft.killed is None else turns[: draft.committed]
    assert {number: len(kept[opened.index(number)]) >= count for number, count in Counter(committed).items()} == (
        dict.fromkeys(committed, True)
    )


@settings(max_examples=40)
@given(journals())
def test_any_journal_in_memory_passes_its_check(draft: JournalDraft) -> None:
    check_journal(draft.in_memory())


@settings(max_examples=4)
@given(journals(killed=True))
def test_what_a_killed_writer_left_is_sound(draft: JournalDraft) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = draft.write(Path(folder) / "run.journal")
        assert not verify(path).is_sealed
        check_journal(path)


TRAITS = {
    "several": lambda draft: len(draft.streams) == 3,
    "taking turns": lambda draft: 0 in draft.turns[list(draft.turns).index(1) :] if 1 in draft.turns else False,
    "a branch": lambda draft: any(events[0].kind == "branch" for events in draft.streams),
    "killed": lambda draft: draft.killed is not None and 0 < draft.committed < draft.killed,
    "closed": lambda draft: draft.killed is None,
}


FINDING = settings(max_examples=500, derandomize=True, database=None, phases=[Phase.generate])
"""Any example will do; making it small takes most of the time."""


@pytest.mark.parametrize("trait", TRAITS)
def test_whatever_may_become_of_a_journal_is_drawn(trait: str) -> None:
    draft = find(journals(), TRAITS[trait], settings=FINDING)
    assert str(len(draft.turns)) in repr(draft)
    assert len(repr(draft)) < 500


def test_a_draft_shrinks_to_what_matters() -> None:
    def returns_twice(draft: JournalDraft) -> bool:
        return sum(isinstance(event, ForwardReturned) for events in draft.streams for event in events) == 2

    draft = find(journals(killed=False), returns_twice, settings=settings(derandomize=True, database=None))
    assert [len(events) for events in draft.streams] == [8, 8]


# -- tensors -------------------------------------------------------------------------------------------


@given(tensors((2, 3), requires_grad=True))
def test_a_tensor_has_the_shape_and_flags_it_was_asked_for(tensor: Tensor) -> None:
    assert (tensor.shape, tensor.dtype, tensor.requires_grad) == ((2, 3), torch.float32, True)
    assert tensor.is_leaf
    assert bool(torch.isfinite(tensor).all())


@given(st.data(), st.sampled_from((torch.int64, torch.bool, torch.bfloat16, torch.complex64)))
def test_of_any_dtype_and_shape(data: st.DataObject, dtype: torch.dtype) -> None:
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    assert data.draw(tensors(shapes, dtype=dtype)).dtype is dtype


def test_a_failing_tensor_shrinks_towards_ones_and_may_be_spoilt() -> None:
    plain = settings(derandomize=True, database=None)
    assert find(tensors((2,)), lambda tensor: True, settings=plain).tolist() == [1, 1]
    spoilt = find(tensors((2,), nonfinite=True), lambda one: not bool(torch.isfinite(one).all()), settings=plain)
    assert int(torch.isfinite(spoilt).sum()) == 1
    holed = find(tensors((4,)), lambda one: 0 < int((one == 0).sum()) < 4, settings=plain)
    assert holed.numel() == 4


# -- where something is not installed ------------------------------------------------------------------

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from hypothesis import given, settings
from torchlens.testing import any_event, capture_streams, check_journal, check_stream, journals

@settings(max_examples=5, deadline=None, database=None)
@given(capture_streams(backward=True), journals(), any_event())
def check(events, draft, event):
    check_stream(events)
    check_journal(draft.in_memory())

check()
print(sorted(name for name in sys.modules if name.split(".")[0] == "torch"))
"""

WITHOUT_HYPOTHESIS = """
import sys
sys.modules["hypothesis"] = None
import torchlens as tl

tl.testing.check_stream([])
for name in ("capture_streams", "journals", "tensors", "any_event"):
    try:
        getattr(tl.testing, name)
    except tl.TorchLensError as exc:
        print(exc.code)
"""


def test_streams_and_journals_are_drawn_and_checked_without_torch() -> None:
    assert run(WITHOUT_TORCH).stdout == "['torch']\n"


def test_checks_need_no_hypothesis_and_strategies_say_that_they_do() -> None:
    assert run(WITHOUT_HYPOTHESIS).stdout == "hypothesis_not_installed\n" * 4


def test_a_name_that_is_not_there_is_no_attribute() -> None:
    assert not hasattr(tl.testing, "strategies_of_everything")
    assert set(tl.testing.__all__) == set(dir(tl.testing))


def test_a_stream_is_plain_data() -> None:
    (event, *_) = find(capture_streams(), lambda events: True, settings=settings(database=None))
    assert attrs.evolve(event, label="mine").label == "mine"
