"""Records of journals that somebody made up: reading ends with an answer or a coded error, soon and in little room.

The events are well-formed one by one, and every checksum is right. ``tools/fuzz.py`` goes on for as long as it is
told to with what the first law here tries a few times.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchlens as tl
from journal import Event, JournalError, Row
from journal.events import (
    ArgumentsKept,
    CallSiteSeen,
    CaptureCalled,
    CaptureRequested,
    CodeSeen,
    ConstantSeen,
    ExceptionTraced,
    ForwardRaised,
    ForwardReturned,
    ForwardStarted,
    FunctionSeen,
    GeneratorsKept,
    InputSeen,
    ModelDescribed,
    ModuleEntered,
    ModuleLeft,
    ModuleSeen,
    OpExecuted,
    OptimizerGiven,
    PayloadKept,
    PreHooksStarted,
    StreamOpened,
)
from tests import hostile
from tests.hostile import asked, is_printable, mutated, read_journal, read_records, sound_streams, write
from tests.programs import run, surroundings
from tests.strategies import opened
from tests.work import at_most, seconds
from torchlens.printable import printable
from torchlens.reading.values import torch_dtype

SOUND = sound_streams()


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """No made-up journal keeps its reader for long."""
    with at_most(60):
        yield


# -- the law -------------------------------------------------------------------------------------------


def test_sound_captures_are_read_without_a_refusal(tmp_path: Path) -> None:
    """Else the law below would hold for want of anything to read."""
    for number, (rows, payloads) in enumerate(SOUND):
        found = read_records(write(tmp_path / str(number), rows, payloads), fields=False)
        refused = {code for what, code in found.items() if code and not what.startswith("trace[")}
        live = {"output_not_stored", "activation_not_stored", "parameter_not_live"}
        assert refused <= live | {"aten_ops_not_recorded", "export_backward_missing"}
        assert len(found) > 300


@given(st.sampled_from(range(len(SOUND))), st.integers(0, 2**32))
@settings(max_examples=40)
def test_any_change_to_a_capture_gives_records_or_a_coded_error(
    tmp_path_factory: pytest.TempPathFactory, capture: int, seed: int
) -> None:
    rows, payloads = SOUND[capture]
    folder = tmp_path_factory.mktemp("changed")
    path = write(folder / "j", mutated(rows, random.Random(seed)), payloads)
    read_journal(path)
    read_records(path, fields=seed % 4 == 0)
    shutil.rmtree(folder)


# -- captures that are made up ---------------------------------------------------------------------------

PLAIN: tuple[Any, ...] = (
    *((2,), "float32", "cpu", None, None, 0, None, None, None),
    *(False, None, None, None, (), None, None),
)
"""A description."""

ROOT_MODULE = ("", "Net", "models.Net", None, True, (), (), (), ())


def module(address: str, parent: int | None = 0, aliases: Sequence[str] = ()) -> tuple[Any, ...]:
    return (address, "M", "models.M", parent, True, tuple(aliases), (), (), ())


def parameter(address: str = "w") -> tuple[Any, ...]:
    return (address, (2,), "float32", "cpu", True, 8, ())


def begun(
    modules: Sequence[Any] = (ROOT_MODULE,),
    parameters: Sequence[Any] = (),
    functions: Sequence[str] = ("relu",),
    file: str = "net.py",
) -> list[Event]:
    """A capture up to its first op: one input, value 0, is given to the root."""
    return [
        opened(),
        CaptureRequested(
            backend="torch", model_class="Net", model_qualname="models.Net", options=(), save="all", stop_after=None
        ),
        ModelDescribed(modules=tuple(modules), parameters=tuple(parameters), buffers=()),
        InputSeen(value=0, path=("x",), was_parameter=False, description=PLAIN),
        ForwardStarted(args=((),), kwargs=(), inputs=(0,), mode=1, random_seed=None),
        entered(0),
        CodeSeen(number=0, file=file, qualname="Net.forward", name="forward", first_line=1, source=None),
        CallSiteSeen(number=0, code=0, span=(1, 1, 0, 1), caller=None),
        *(
            FunctionSeen(number=number, func_name=name, qualname=f"torch.{name}", opaque=None)
            for number, name in enumerate(functions)
        ),
    ]


def constant(value: int, made_by: str) -> ConstantSeen:
    """A tensor that an unwatched call made during the forward."""
    return ConstantSeen(value=value, made_by=made_by, inside=True, inputs=(), thread=None, description=PLAIN)


def hooked(number: int) -> PreHooksStarted:
    return PreHooksStarted(module=number, args=((),), kwargs=(), inputs=(0,), writers=None)


def entered(number: int, inputs: Sequence[int] = ()) -> ModuleEntered:
    return ModuleEntered(module=number, site=None, args=(), kwargs=(), inputs=tuple(inputs), writers=None)


def left(call: int, outputs: Sequence[int] = ()) -> ModuleLeft:
    return ModuleLeft(call=call, result=None, outputs=tuple(outputs))


def op(
    first: int, inputs: Sequence[int] = (0,), *, outputs: int = 1, described: Any = PLAIN, **told: Any
) -> OpExecuted:
    plain: dict[str, Any] = dict.fromkeys(("function", "site", "call", "thread", "duration_ns"), 0)
    plain |= dict.fromkeys(("writers", "written", "container", "autocast", "rng"))
    plain |= {"mode": 1, "args": ((),) * len(inputs), "kwargs": (), "inputs": tuple(inputs), "first": first}
    return OpExecuted(**plain | {"outputs": (described,) * outputs} | told)


def chain(count: int, **told: Any) -> list[Event]:
    """As many ops one after another."""
    return [op(value + 1, (value,), **told) for value in range(count)]


def rows_of(events: Sequence[Event]) -> list[Row]:
    return [event.row(1000 * at) for at, event in enumerate(events)]


def called(number: int, count: int) -> list[Event]:
    """As many calls of a module, each with one op in it."""
    events: list[Event] = []
    for call in range(1, count + 1):
        events += [entered(number), op(call, (call - 1,), call=call), left(call)]
    return events


def with_output(described: Any) -> list[Event]:
    return [*begun(), op(1, described=described)]


def deep(levels: int) -> Any:
    template: Any = 1
    for _ in range(levels):
        template = (1, template)
    return template


def odd(place: int, value: Any) -> tuple[Any, ...]:
    return (*PLAIN[:place], value, *PLAIN[place + 1 :])


FRAME = ("net.py", 1, "forward", "Net.forward", 1, 0)

ABSURD: dict[str, list[Event]] = {
    "a negative shape": with_output(odd(0, (-1, 2))),
    "a shape of 2**80 elements": with_output(odd(0, (2**40, 2**40))),
    "a shape of 10,000 axes": with_output(odd(0, (2,) * 10_000)),
    "a shape of 10,000 long axes": with_output(odd(0, (2**62,) * 10_000)),
    "a shape that is text": with_output(odd(0, "shape")),
    "a dtype that is none": with_output(odd(1, "float1000000000000000000")),
    "a dtype of a thousand digits": with_output(odd(1, "float" + "9" * 5000)),
    "a dtype that is a function of torch": with_output(odd(1, "load")),
    "a dtype that torch would import": with_output(odd(1, "_inductor")),
    "negative strides": with_output(odd(14, (0, 0, (-1,)))),
    "strides that do not fit the shape": with_output(odd(14, (0, 0, (1, 1, 1)))),
    "an offset outside the payload": with_output(odd(14, (0, 2**62, None))),
    "strides outside the payload": with_output(odd(14, (0, 0, (2**62,)))),
    "a payload that is not there": with_output(odd(14, (2**62, 0, None))),
    "a payload of another shape": with_output(odd(14, (0,))),
    "an input from the future": [*begun(), op(1, (7,)), op(2)],
    "an input that is its own result": [*begun(), op(1, (1,))],
    "a value of 2**62": [*begun(), op(2**62)],
    "a parameter that is not there": [*begun(), op(1, (-(2**62),))],
    "a function that is not there": [*begun(), op(1, function=2**62)],
    "a function of a negative number": [*begun(), op(1, function=-(2**62))],
    "a site that is not there": [*begun(), op(1, site=2**62)],
    "a call that is not there": [*begun(), op(1, call=2**62)],
    "a call of a negative number": [*begun(), op(1, call=-5)],
    "a code that is not there": [*begun(), CallSiteSeen(number=1, code=9, span=(1,), caller=0), op(1, site=1)],
    "a site called from itself": [*begun(), CallSiteSeen(number=1, code=0, span=(1,), caller=1), op(1, site=1)],
    "sites called from each other": [
        *begun(),
        CallSiteSeen(number=1, code=0, span=(1,), caller=2),
        CallSiteSeen(number=2, code=0, span=(1,), caller=1),
        op(1, site=1),
        op(2, site=2),
    ],
    "modules inside each other": begun([ROOT_MODULE, module("a", 2), module("b", 1)]),
    "a module inside itself": begun([ROOT_MODULE, module("a", 1)]),
    "a module inside a negative one": begun([ROOT_MODULE, module("a", -1)]),
    "a module that is not there": [*begun(), entered(2**62), op(1, call=1)],
    "two roots": begun([ROOT_MODULE, ROOT_MODULE]),
    "calls that never close": [*begun(), *(entered(0) for _ in range(200)), op(1, call=200)],
    "calls that close before they open": [*begun(), left(5), entered(0)],
    "calls that close twice": [*begun(), left(0), left(0), left(0)],
    "an output that is not there": [*begun(), ForwardReturned(result=(), outputs=(2**40,), paths=((),))],
    "an output without a place": [*begun(), op(1), ForwardReturned(result=(), outputs=(1,), paths=())],
    "a payload kept of nothing": [*begun(), PayloadKept(value=2**62, payload=(2**62, -1, (1,)))],
    "arguments kept of nothing": [*begun(), ArgumentsKept(of=2**62, tensors=(((2**62, -1, (1,)), (2,), "float32"),))],
    "arguments kept of themselves": [*begun(), ArgumentsKept(of=9, tensors=()), op(1)],
    "arguments kept with too few tensors": [*begun(), op(1), ArgumentsKept(of=9, tensors=())],
    "arguments kept in absurd places": [
        *begun(),
        op(1),
        ArgumentsKept(of=9, tensors=(((0, -1, (0,)), (-2, 2**40), "no dtype"), None, ((0, 0, None), (2,), "float32"))),
        ArgumentsKept(of=5, tensors=(((2**62, 0, None), (2,), "float32"),)),
    ],
    "generators kept of nothing": [*begun(), op(1), GeneratorsKept(of=9, states=(("cpu", 2**62), ("", -1)))],
    "hooks of a module that is not there": [*begun(), hooked(2**62), hooked(-1), entered(0)],
    "hooks that never end": [*begun([ROOT_MODULE, module("a")]), *(hooked(1) for _ in range(200)), entered(1), left(1)],
    "an optimizer of what is not there": [
        *begun(parameters=[parameter()]),
        OptimizerGiven(class_qualname="", parameters=(2**62, -1, 0)),
    ],
    "memory written under every name": [*begun(), op(1), *(op(number, writers=(1,)) for number in range(2, 60))],
    "arguments nested to the limit": [*begun(), *chain(5, args=(deep(200),))],
    "arguments nested beyond it": [*begun(), *chain(5, args=(deep(500),))],
    "names that move the cursor": [
        *begun([ROOT_MODULE, module("\x1b[2J\x1b]0;title\x07")], functions=("\x1b[31m",)),
        *(entered(1), op(1, call=1), left(1)),
    ],
    "names of right-to-left": [*begun([ROOT_MODULE, module("\u202eevil")]), entered(1), op(1, call=1)],
    "names that are paths": [*begun([ROOT_MODULE, module("../../../etc/passwd")], file="/etc/passwd"), op(1)],
    "names that are empty": [*begun([ROOT_MODULE, module("")], functions=("",)), entered(1), op(1, call=1)],
    "asked for at half a place": [*begun(), CaptureCalled(frame=("net.py", 1))],  # type: ignore[arg-type]  # the point
    "asked for at more than a place": [*begun(), CaptureCalled(frame=(*FRAME, 7))],  # type: ignore[arg-type]  # too
    "asked for at a line that is text": [*begun(), CaptureCalled(frame=("net.py", "1", *FRAME[2:]))],  # type: ignore[arg-type]  # too
    "an exception that came from nowhere": [
        *begun(),
        ExceptionTraced(frames=()),
        ForwardRaised(exception="E", message=""),
    ],
    "an exception through half a place": [
        *begun(),
        ExceptionTraced(frames=(FRAME, FRAME[:3])),  # type: ignore[arg-type]  # the point
        ForwardRaised(exception="E", message=""),
    ],
    "only a header": [opened()],
    "headers all along": [opened(), opened(kind="branch", parent=0, branched_at=1), opened()],
}


@pytest.mark.parametrize("what", ABSURD)
def test_absurd_events_give_records_or_a_coded_error(tmp_path: Path, what: str) -> None:
    path = write(tmp_path / "j", rows_of(ABSURD[what]), [bytes(8)])
    read_journal(path)
    read_records(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["j"]


def test_a_dtype_word_names_a_dtype_or_itself() -> None:
    assert torch_dtype("float32").itemsize == 4
    for word in ("load", "nn", "_inductor", "_dynamo", "__builtins__", "no_such_dtype"):
        assert torch_dtype(word) == word


def test_an_activation_never_comes_from_outside_its_payload(tmp_path: Path) -> None:
    """Whatever place a description tells, what is read are bytes of the payload or nothing."""
    places = [(0, 2, None), (0, 0, (4,)), (0, 1, (1,)), (0, 0, (0,)), (0, -1, None), (0, 0, None)]
    events = [*begun(), *(op(1 + place, described=odd(14, ref)) for place, ref in enumerate(places))]
    trace = tl.load(write(tmp_path / "j", rows_of(events), [b"\0\0\x80\x3f\0\0\0\x40"]))
    found = hostile.Outcomes()
    answers = [found.of(record.label, lambda record=record: record.out.tolist()) for record in trace.compute_ops]
    bad = "payload_shape_mismatch"
    assert [answer or code for answer, code in zip(answers, found.values(), strict=True)] == [
        bad,
        bad,
        bad,
        [1.0, 1.0],
        bad,
        [1.0, 2.0],
    ]
    trace.cleanup()


def test_the_source_of_a_function_is_only_text(tmp_path: Path) -> None:
    text = b"raise SystemExit\n\xff\x1b[2J__import__('os').system('touch hit')"
    events = begun()
    events[6] = CodeSeen(number=0, file="/etc/passwd", qualname="f", name="f", first_line=1, source=0)
    trace = tl.load(write(tmp_path / "j", rows_of([*events, op(1)]), [text]))
    (frame,) = trace.ops["relu_1_1"].code_context
    assert frame.source_context == text.decode(errors="replace")
    assert frame.call_line == "raise SystemExit"
    trace.cleanup()


def test_what_a_terminal_would_obey_is_spelled_out(tmp_path: Path) -> None:
    name = "\x1b[31m\u202e\x07\x9b2J"
    events = [opened(label=name, tags=(name,), environment=((name, name),), written_by=name), *begun()[1:], op(1)]
    path = write(tmp_path / "j", rows_of(events))
    for command in ("info", "captures", "events", "ops"):
        for form in ((), ("--json",)):
            status, said, refused = asked("journal", command, str(path), *form)
            assert (status, refused) == (0, "")
            assert is_printable(said)
    status, said, refused = asked("journal", "ops", str(path), "--capture", name)
    assert (status, refused) == (0, "")
    status, said, refused = asked("journal", "ops", str(path), "--capture", name * 2)
    assert status == 1
    assert is_printable(refused)
    assert printable(name) == "\\x1b[31m\\u202e\\x07\\x9b2J"
    assert printable("größe ✓") == "größe ✓"
    assert json.loads(asked("journal", "captures", str(path), "--json")[1])[0]["name"] == name


# -- short journals that would make large records --------------------------------------------------------

MANY = 1000

GROWING: dict[str, Callable[[], list[Event]]] = {
    "edges": lambda: [
        *begun(),
        op(1, outputs=3 * MANY),
        op(3 * MANY + 1, range(1, 3 * MANY), outputs=3 * MANY),
    ],
    "function name": lambda: [*begun(functions=("f" * 100_000,)), *chain(MANY)],
    "module name": lambda: [*begun([ROOT_MODULE, module("a" * 500_000)]), *called(1, MANY)],
    "aliases": lambda: [
        *begun([ROOT_MODULE, module("a", 0, ["b" * 1000 + str(place) for place in range(500)])]),
        *called(1, MANY),
    ],
    "unregistered class": lambda: [
        *begun(),
        ModuleSeen(number=1, class_name="C" * 500_000, class_qualname="C", training=True),
        *called(1, MANY),
    ],
    "nested modules": lambda: begun(
        [ROOT_MODULE, *(module("a", place) for place in range(4 * MANY))], [parameter("a.w")] * 4 * MANY
    ),
    "calls that never close": lambda: [*begun(), *(entered(0) for _ in range(8 * MANY)), op(1)],
    "unwatched function": lambda: [
        *begun(),
        *(
            ConstantSeen(value=n, made_by="F" * 200_000, inside=True, inputs=(), thread=None, description=PLAIN)
            for n in range(1, MANY)
        ),
    ][:300],
}


@pytest.mark.parametrize("what", GROWING)
def test_a_short_journal_makes_no_records_out_of_all_proportion(tmp_path: Path, what: str) -> None:
    path = write(tmp_path / "j", rows_of(GROWING[what]()))
    trace = tl.load(path)
    with pytest.raises(JournalError) as refused:
        _ = trace.ops.labels
    assert refused.value.code in ("records_too_large", "events_contradictory")
    trace.cleanup()


WRITTEN: dict[str, Callable[[], list[Event]]] = {
    "call sites": lambda: [
        *begun(),
        *(CallSiteSeen(number=n + 1, code=0, span=(1, 1, 0, 1), caller=n) for n in range(3 * MANY)),
        *chain(3 * MANY, site=3 * MANY),
    ],
    "file": lambda: [*begun(file="f" * 1_000_000), *chain(MANY)],
    "module path": lambda: [
        *begun([ROOT_MODULE, module("a" * 10_000)]),
        *(entered(1) for _ in range(300)),
        *chain(300, call=300),
    ],
}


@pytest.mark.parametrize("what", WRITTEN)
def test_cells_of_any_size_are_read_one_by_one_and_not_written_out_together(tmp_path: Path, what: str) -> None:
    trace = tl.load(write(tmp_path / "j", rows_of(WRITTEN[what]())))
    assert len(trace.ops[5].code_context) >= 1
    assert len(trace.ops[5].modules) >= 0
    with pytest.raises(JournalError) as refused:
        _ = trace.fingerprint
    assert refused.value.code == "records_too_large"
    trace.cleanup()


LINEAR: dict[str, Callable[[int], list[Event]]] = {
    "a value handed through modules": lambda many: [
        *begun([ROOT_MODULE, module("a")]),
        *(event for call in range(1, many + 1) for event in (entered(1, (0,)), left(call, (0,)))),
        op(1),
    ],
    "unwatched functions": lambda many: [
        *begun(),
        *(
            ConstantSeen(value=n, made_by=f"F{n}xBackward", inside=True, inputs=(), thread=None, description=PLAIN)
            for n in range(1, many + 1)
        ),
    ],
    "calls left from the outermost": lambda many: [
        *begun(),
        *(entered(0) for _ in range(many)),
        *(left(call) for call in range(1, many + 1)),
    ],
}


@pytest.mark.parametrize("what", LINEAR)
def test_twice_the_events_take_about_twice_the_time(tmp_path: Path, what: str) -> None:
    few, many = (write(tmp_path / str(so), rows_of(LINEAR[what](so))) for so in (700, 2800))

    def read(path: Path) -> None:
        trace = tl.load(path)
        assert len(trace.ops.labels) >= 1
        assert math.prod(len(list(trace.tables.ops.column(name))) for name in ("shape", "payload_ref")) >= 1
        trace.cleanup()

    once, longer = (min(seconds(lambda path=path: read(path)) for _ in range(2)) for path in (few, many))  # type: ignore[misc]
    assert longer < 10 * once + 0.2  # the square would be 16


def test_reading_stays_within_a_small_multiple_of_the_journal(tmp_path: Path) -> None:
    """In a process that may not have more memory: whatever it reads, it is refused by code or answered."""
    for number, what in enumerate(GROWING):
        write(tmp_path / str(number), rows_of(GROWING[what]()))
    rows, payloads = SOUND[0]
    for seed in range(4):
        write(tmp_path / f"changed {seed}", mutated(rows, random.Random(seed)), payloads)
    script = """
        import re, resource, sys
        from pathlib import Path
        sys.modules["torch"] = None
        from tests.hostile import read_journal, read_records
        taken = int(re.search(r"VmData:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1]) << 10
        room = taken + (320 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (room, room))
        for path in sorted(Path(sys.argv[1]).iterdir()):
            read_journal(path)
            read_records(path, fields=False)
    """
    assert (
        run(script, tmp_path, env=surroundings(OPENBLAS_NUM_THREADS="1")).stderr == ""
    )  # its threads take memory each


def test_the_readers_here_notice_what_is_not_coded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, payloads = SOUND[0]
    path = write(tmp_path / "j", rows, payloads)

    def broken(view: object) -> StreamOpened:
        raise ZeroDivisionError

    monkeypatch.setattr("torchlens.reading.facade.Trace.summary", broken)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        hostile.read_records(path, fields=False)
