"""``torchlens travel --script``: what is typed, what is read of it, and what is answered."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchlens as tl
from tests.torchlens.command import printed
from tests.torchlens.faulty import capture_faulty
from torchlens.cli import main
from torchlens.debugger.session import COMMANDS, Command, Session
from torchlens.debugger.written import CONSTRUCTORS, read_what

DOCS = Path(__file__).parents[2] / "docs" / "time_travel.md"


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture_faulty(tmp_path_factory.mktemp("travel") / "run.journal")


@pytest.fixture
def session(journal: Path) -> Session:
    return Session(tl.time_travel(journal))


# What is typed ----------------------------------------------------------------------------------------


NAMES = st.sampled_from(("relu", "fc", "block.2", "relu_1_2", "a'b", 'a"b', "ü", "a|b", "(", "\\d", "x\n"))
TERMS = st.one_of(
    *(st.builds(make, NAMES) for make in (tl.func, tl.module, tl.in_module, tl.label, tl.contains, tl.grad)),
    st.sampled_from((tl.grad_input(), tl.grad_output(), tl.without_op(), tl.in_backward_pass(2))),
    st.builds(tl.output, st.integers(0, 3)),
    st.builds(tl.grad_fn, st.sampled_from(("mul", "AddmmBackward0"))),
)
SELECTORS = st.recursive(
    TERMS,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=6,
)


@given(SELECTORS)
def test_the_text_of_a_selector_is_read_as_that_selector(selector: tl.Selector) -> None:
    assert read_what(repr(selector)) == selector


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ('tl.func("relu") & in_module("fc")', tl.func("relu") & tl.in_module("fc")),
        ("'relu_1_2' | func('tanh')", tl.label("relu_1_2") | tl.func("tanh")),
        ("preceded_by(func('relu'), within=2)", tl.preceded_by(tl.func("relu"), within=2)),
        ('func("split", output=-1)', tl.func("split", output=-1)),
        ("  relu_1_2 ", tl.label("relu_1_2")),
        ("node_fired", "node_fired"),
    ],
)
def test_it_may_be_written_shorter(text: str, means: object) -> None:
    assert read_what(text) == means


@pytest.mark.parametrize(
    "text",
    [
        "",
        "func(",
        "__import__('os').system('true')",
        "func.__globals__()",
        "tl.trace(1)",
        "os.func('relu')",
        "where(lambda op: True)",
        "[func('relu') for x in (1,)]",
        "func(*'ab')",
        "func(**{'name': 'relu'})",
        "func(f'{1}')",
        "func(b'relu')",
        "func('relu') + func('relu')",
        "func('relu') and func('tanh')",
        "func('relu', 1, 2, 3)",
        "~" * 3000 + "func('a')",
        "(" * 900 + "func('a')" + ")" * 900,
        "\x00 | 'a'",
    ],
)
def test_what_is_no_selector_is_refused_and_nothing_runs(text: str) -> None:
    with pytest.raises(tl.TorchLensError) as refused:
        read_what(text)
    assert refused.value.code in ("selector_text_malformed", "selector_too_large")


def test_selectors_that_can_be_typed_are_those_of_the_package_but_for_functions() -> None:
    made = {name for name in tl.__all__ if isinstance(CONSTRUCTORS.get(name), type(read_what))}
    assert made == set(CONSTRUCTORS)
    assert not {"where", "top_k", "threshold"} & set(CONSTRUCTORS)  # of functions and of tensors


# What is answered -------------------------------------------------------------------------------------


def test_a_script_goes_to_the_first_infinity_and_tells_why(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.txt"
    script.write_text("# where it went wrong\n\nfirst_nonfinite\nsource\nvalues\nback 3\nquit\nnonsense\n")
    said = printed(capsys, "travel", journal, "--script", script).splitlines()
    assert re.search(r"op_executed +log_1_5", said[0])
    assert "first not finite: activation of log_1_5" in said[1]
    assert any(line.startswith("--->") and "torch.log(" in line for line in said)
    assert any("log_1_5: 6 infinite, of 6 elements" in line for line in said)


def test_the_script_of_the_documentation_runs(
    journal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = re.findall(r"--script - <<'END'\n(.*?)END\n", DOCS.read_text(), re.DOTALL)
    monkeypatch.setattr(sys, "stdin", io.StringIO(script))
    said = printed(capsys, "travel", journal, "--script", "-")
    assert "linear_2_3" in said
    assert "log_1_5: 6 infinite, of 6 elements" in said


def test_each_move_says_where_the_cursor_stands(session: Session) -> None:
    moves = {
        "step 3": "model_described",
        "back": "capture_requested",
        'next func("relu")': "relu_1_2",
        "next": None,
        "seek -1": "pass_finalized",
        'previous grad("relu_1_2")': "gradient_observed",
        "p node_fired": "node_fired",
        "run_to node_fired": "node_fired",
        "run_back_to linear_1_1": "linear_1_1",
        "seek 0.0": "before the first event",
    }
    for line, said in moves.items():
        before = session.cursor.position
        if said is None:
            with pytest.raises(tl.TorchLensError, match="no_event_matches"):
                session.answer(line)
            assert session.cursor.position == before
        else:
            (answer,) = session.answer(line)
            assert said in answer


def test_what_is_shown_are_the_records(session: Session) -> None:
    session.answer('next func("relu")')
    relu = session.cursor.whole["relu_1_2"]
    record = "\n".join(session.answer("record"))
    assert str(tuple(relu.shape)) in record
    assert "linear_1_1" in record
    values = session.answer("values")
    assert str(relu.stats) in values[0]
    counts = [int(line.split()[-1]) for line in values[1:]]
    assert sum(counts) == relu.out.numel()
    assert counts[0] == int((relu.out < relu.out.max() / len(counts)).sum())
    session.answer('next grad("linear_2_3")')
    gradient = session.cursor.whole["linear_2_3"].autograd.grads[0]
    assert str(gradient.stats) in session.answer("values")[0]
    session.answer("next node_fired")
    assert "call_label" in "\n".join(session.answer("record"))


def test_every_command_answers_or_refuses_by_code_wherever_one_stands(session: Session) -> None:
    for position in range(session.cursor.num_events + 1):
        for command in COMMANDS:
            session.cursor.seek(position - 1 if position else 0.0)
            for line in (*command.words, f"{command.words[0]} 1", f"{command.words[0]} nonsense("):
                with contextlib.suppress(tl.TorchLensError):
                    assert all("\n" not in said for said in session.answer(line))


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.takes is None], ids=lambda each: each.words[0])
def test_what_takes_nothing_is_refused_with_something_behind_it(session: Session, command: Command) -> None:
    for word in command.words:
        with pytest.raises(tl.TorchLensError) as refused:
            session.answer(f"{word} 1")
        assert refused.value.code == "travel_argument_invalid"
    assert not session.is_over


def test_events_are_listed_with_a_mark_at_the_cursor(session: Session) -> None:
    session.answer("seek 20")
    listed = session.answer("events 3")
    assert [int(line[1:].split()[0]) for line in listed] == list(range(17, 24))
    assert [line[0] for line in listed] == [" "] * 3 + [">"] + [" "] * 3
    session.answer("seek 0.0")
    assert len(session.answer("events 2")) == 2


def test_why_is_asked_of_the_op_of_the_event(session: Session) -> None:
    session.answer('next func("relu")')
    assert session.answer("why") == session.answer("why relu_1_2")
    session.answer("seek 0")
    with pytest.raises(tl.TorchLensError) as refused:
        session.answer("why")
    assert refused.value.code == "travel_argument_invalid"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("stepp", "travel_command_unknown"),
        ("step one", "travel_argument_invalid"),
        ("step -1", "travel_argument_invalid"),
        ("step " + "9" * 30, "travel_argument_invalid"),
        ("seek here", "travel_argument_invalid"),
        ("seek 1e400.", "travel_argument_invalid"),
        ("where now", "travel_argument_invalid"),
        ("next", "travel_argument_invalid"),
        ("next func(", "selector_text_malformed"),
        ('next regex("(")', "selector_pattern_invalid"),
        ("next in_backward_pass(" + "9" * 22 + ")", "selector_pass_invalid"),
        ("seek 9999", "event_out_of_range"),
        ("back", "step_out_of_range"),
    ],
)
def test_a_line_that_cannot_be_done_is_refused_and_ends_a_script(
    line: str, code: str, journal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"state\n{line}\nstate\n"))
    assert main(["travel", str(journal), "--script", "-"]) == 1
    shown = capsys.readouterr()
    assert shown.out.count("before the first") == 1
    assert shown.err.startswith("torchlens: line 2: ")
    assert code in shown.err


def test_a_closed_standard_input_is_refused(
    journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for arguments in (["--script", "-"], []):
        assert main(["travel", str(journal), *arguments]) == 1
        assert "Remedy: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["-", "script"])
def test_bytes_of_a_script_that_are_no_text_are_refused_as_a_line(
    name: str, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = b"state\nstep\xff\n"
    (tmp_path / "script").write_bytes(given)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8", errors="strict"))
    assert main(["travel", str(journal), "--script", name if name == "-" else str(tmp_path / name)]) == 1
    assert capsys.readouterr().err.startswith("torchlens: line 2: ")


def test_a_screen_needs_a_terminal_and_textual(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["travel", str(journal)]) == 1
    assert "travel_needs_terminal" in capsys.readouterr().err
    assert main(["travel", str(journal), "--script", str(tmp_path / "none")]) == 1
    assert "travel_script_unreadable" in capsys.readouterr().err
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    for name in ("textual", *(name for name in sys.modules if name.startswith("textual."))):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "torchlens.debugger.screen", raising=False)
    assert main(["travel", str(journal)]) == 1
    assert "textual_not_installed" in capsys.readouterr().err
