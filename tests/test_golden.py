"""Golden journals: what was captured once must go on projecting to what it did, wherever and however it is read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from journal import Journal, LmdbJournal, MemoryJournal, StreamId, open_for_reading
from journal.events import EVENTS_BY_NAME, Event, PassFinalized, PassScavenged, PayloadKept
from projections import Projector, fingerprint
from tests.golden import (
    EVENTS,
    GOLDEN,
    GOLDENS,
    JOURNAL,
    MANIFEST,
    copied,
    described,
    manifest,
    own_events,
    payloads,
    portable,
    portable_records,
    portable_streams,
)
from tests.programs import run, surroundings
from torchlens.reading.facade import Trace
from torchlens.reading.source import StreamSource

MACHINE = re.compile(rb"/(?:home|tmp|work|root|usr|opt|var|Users|private)/|site-packages|[A-Z]:\\")
"""What a path of somebody's machine looks like."""

of_each = pytest.mark.parametrize("golden", GOLDENS, ids=[golden.name for golden in GOLDENS])


def opened(folder: Path, golden: Path = GOLDEN) -> LmdbJournal:
    return open_for_reading(copied(folder, golden))


@of_each
def test_a_golden_journal_projects_to_its_fingerprints(golden: Path, tmp_path: Path) -> None:
    journal = opened(tmp_path, golden)
    assert described(journal) == manifest(golden)["captures"]
    journal.close()


@of_each
def test_the_same_events_in_another_store_project_to_the_same(golden: Path) -> None:
    assert described(portable(golden)) == manifest(golden)["captures"]


@of_each
def test_the_portable_form_holds_the_events_of_the_journal(golden: Path, tmp_path: Path) -> None:
    journal = opened(tmp_path, golden)
    streams = [[(item.time_ns, item.event) for item in own_events(journal, info)] for info in journal.streams()]
    assert [events for _, events in portable_streams(golden / EVENTS)] == streams
    journal.close()


SURROUNDINGS = {
    "one": {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C"},
    "other": {"PYTHONHASHSEED": "2", "TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "0"},
}

TELLS = """
import json, sys
sys.modules["torch"] = None
from pathlib import Path
from journal import open_for_reading
from tests.golden import GOLDENS, copied, described, portable

told = []
for number, golden in enumerate(GOLDENS):
    folder = Path.cwd() / str(number)
    folder.mkdir()
    told += [described(open_for_reading(copied(folder, golden))), described(portable(golden))]
sys.stdout.write(json.dumps(told))
"""


@pytest.mark.parametrize("where", SURROUNDINGS)
def test_another_process_without_torch_finds_the_same(where: str, tmp_path: Path) -> None:
    done = run(TELLS, cwd=tmp_path, env=surroundings(**SURROUNDINGS[where]))
    assert done.stderr == ""
    due = [captures for golden in GOLDENS for captures in [manifest(golden)["captures"]] * 2]
    assert json.loads(done.stdout) == due


def folded(journal: Journal, stream: StreamId, stops: list[int]) -> str:
    projector = Projector(StreamSource(journal, stream))
    for stop in stops:
        projector.tables(stop)
    return fingerprint(projector.tables())


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_it_may_be_folded_at_once_by_chunk_or_event_by_event(store: str, tmp_path: Path) -> None:
    journal: Journal = opened(tmp_path) if store == "disk" else portable()
    for info in journal.streams():
        ends = [0]
        for rows in journal.rows(info.stream):
            ends.append(ends[-1] + len(rows))
        due = folded(journal, info.stream, [])
        assert folded(journal, info.stream, ends) == due
        assert folded(journal, info.stream, list(range(info.head + 1))) == due
    journal.close()


def test_an_activation_reads_as_it_was_captured(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    trace = Trace(journal, StreamId(0))
    assert trace["relu_1_3"].out.min() == 0
    assert trace.input_ops[0].out.flatten().tolist() == pytest.approx([-1 + 2 * step / 31 for step in range(32)])
    trace.cleanup()


# -- what is in it -------------------------------------------------------------------------------------


def shipped(cls: type[Event]) -> bool:
    """Whether a class is the package's own: tests register some for themselves."""
    return cls.__module__.startswith("journal.")


def test_the_present_golden_journal_has_every_kind_of_event(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    found = {type(item.event) for info in journal.streams() for item in journal.events(info.stream)}
    assert {cls for cls in EVENTS_BY_NAME.values() if shipped(cls)} - found == set(), (
        "extend tests/data/golden/models.py"
    )
    journal.close()


def test_the_present_golden_journal_has_a_branch_with_a_payload_of_its_own(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    (branch,) = (info for info in journal.streams() if info.opened.kind == "branch")
    assert branch.opened.parent is not None
    events = [item.event for item in own_events(journal, branch)]
    (number,) = (event.payload[0] for event in events if isinstance(event, PayloadKept))
    *shared, own = payloads(journal, branch.stream)
    assert shared == list(payloads(journal, branch.opened.parent))
    assert own == bytes(journal.payload(branch.stream, number))
    journal.close()


def test_the_present_golden_journal_is_of_the_present_schema() -> None:
    """After a change of the schema, run tools/golden.py; CONTRIBUTING tells when to keep the old one."""
    present = {name: cls.event_version for name, cls in EVENTS_BY_NAME.items() if shipped(cls)}
    assert manifest()["events"] == present
    stored = {(record[1], record[2]) for record in portable_records(GOLDEN / EVENTS) if record[0] == "event"}
    assert dict(stored) == present


@of_each
def test_no_path_of_a_machine_stands_in_a_golden_journal(golden: Path) -> None:
    files = [file for file in golden.rglob("*") if file.is_file()]
    assert {EVENTS, MANIFEST, "data.mdb"} <= {file.name for file in files}
    assert [str(file) for file in files if MACHINE.search(file.read_bytes())] == []


@of_each
def test_a_golden_journal_is_small(golden: Path) -> None:
    assert sum(file.stat().st_size for file in golden.rglob("*") if file.is_file()) < 450_000


def test_a_change_of_one_fact_would_be_seen() -> None:
    """The fingerprint of every capture depends on what its events say, save how far the close of a pass has come."""
    journal, spoilt = portable(), MemoryJournal()
    streams: list[Any] = [list(own_events(journal, info)) for info in journal.streams()]
    for events in streams:
        writer = spoilt.open_stream(events[0].event, events[0].time_ns)
        while isinstance(events[-1].event, (PassScavenged, PassFinalized)):
            events.pop()
        for item in events[1:-1]:
            writer.append(item.event, item.time_ns)
        writer.close()
    prints = [entry["fingerprint"] for entry in manifest()["captures"]]
    assert not set(prints) & {Trace(spoilt, info.stream).fingerprint for info in spoilt.streams()}
    assert len(set(prints)) == len(prints)


def test_the_golden_journal_on_disk_is_only_ever_copied() -> None:
    assert not (GOLDEN / JOURNAL / "lock.mdb").exists()
    assert not (GOLDEN / JOURNAL / "writer.lease").exists()
