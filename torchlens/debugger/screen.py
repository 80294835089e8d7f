"""The screen of ``torchlens travel``: events on the left; record, source and values of the one where the cursor stands.

Rule   a key does what a line said to the session does; what is refused is shown in the line above the keys, and the
       cursor stays. Text of the capture's is printed as it is, never as markup.
Note   the list holds what fits on the screen, however many events there are; the line of keys fits on 80 columns, and
       names those that are not plain from others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Resize
from textual.widgets import Footer, Input, Static

from journal import TorchLensError
from torchlens.debugger.panes import record_lines, source_lines, state_line, value_lines
from torchlens.debugger.session import Session
from torchlens.printable import printable

__all__ = ["Screen"]

POLL_SECONDS: Final = 0.5
"""How often it is asked whether a capture that is still written has more events."""

PROMPTS: Final = {"next": "next: ", "previous": "previous: ", "": ": "}
"""What stands before the line that is typed, by the command that it is the rest of."""


class Pane(VerticalScroll):
    """Lines under a title, which is the pane's name until another one is given."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self.border_title = name
        self.text = Static(markup=False)

    def compose(self) -> ComposeResult:
        yield self.text

    def show(self, lines: Iterable[str]) -> None:
        self.text.update(Text("\n".join(lines), no_wrap=False))
        self.scroll_home(animate=False)


class Screen(App[None]):
    """A session that is moved by keys.

    Args:
        session: What is moved.
    """

    TITLE = "torchlens travel"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #events { width: 50%; height: 100%; border: round $primary; text-wrap: nowrap; text-overflow: ellipsis; }
    #right { width: 50%; }
    Pane { border: round $secondary; height: 1fr; }
    #answer { display: none; height: 40%; }
    #line { height: 1; border: none; display: none; padding: 0; }
    #said { height: auto; max-height: 4; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j,space", "say('step')", "step"),
        Binding("up,k", "say('back')", "back", show=False),
        Binding("pagedown", "leap(1)", "page on", show=False),
        Binding("pageup", "leap(-1)", "page back", show=False),
        Binding("home,g", "seek(0.0)", "begin", show=False),
        Binding("end,G", "seek(1.0)", "end", show=False),
        Binding("slash", "ask('next')", "find"),
        Binding("question_mark", "ask('previous')", "find back", show=False),
        Binding("n", "say('next')", "next"),
        Binding("p,N", "say('previous')", "previous", show=False),
        Binding("f", "tell('first_nonfinite')", "inf/NaN"),
        Binding("F", "tell('first_nonfinite nan')", "first NaN", show=False),
        Binding("c", "tell('changed')", "changes"),
        Binding("w", "tell('why')", "why"),
        Binding("colon", "ask('')", "command"),
        Binding("h", "tell('help')", "help"),
        Binding("escape", "close", "close", show=False),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session: Final = session
        self.asked = ""  # the command that the line which is typed is the rest of
        self.events = Static(id="events", markup=False)
        self.panes: Final = {name: Pane(name) for name in ("record", "source", "values", "answer")}
        self.said = Static(id="said", markup=False)
        self.line = Input(id="line")
        self.known = 0  # events that there were when it was last looked

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self.events
            with Vertical(id="right"):
                for name in ("record", "source", "values"):
                    yield self.panes[name]
        yield self.panes["answer"]
        yield self.said
        yield self.line
        yield Footer()

    def on_mount(self) -> None:
        self.events.border_title = printable(self.session.cursor.title)
        self.events.can_focus = True
        self.set_focus(self.events)
        self.set_interval(POLL_SECONDS, self.look)
        self.refresh_all()

    def on_resize(self, event: Resize) -> None:
        self.show_events()

    # -- keys

    def action_say(self, line: str) -> None:
        """Say something to the session; the answer is where it stands now."""
        self.say(line)

    def action_tell(self, line: str) -> None:
        """Say something to the session, and show what it answers."""
        self.answer_to(line)

    def action_leap(self, sign: int) -> None:
        """A page on or back, of the answer where one is shown, else of the events."""
        answer = self.panes["answer"]
        if answer.display:
            answer.scroll_relative(y=sign * answer.size.height, animate=False)
            return
        cursor = self.session.cursor
        if sign > 0:
            cursor.step(min(self.num_rows, cursor.num_events - cursor.position))
        else:
            cursor.back(min(self.num_rows, cursor.position))
        self.refresh_all()

    def action_seek(self, part: float) -> None:
        self.session.cursor.seek(part)
        self.refresh_all()

    def action_ask(self, command: str) -> None:
        """Let a line be typed."""
        self.asked = command
        self.line.value = ""
        self.line.placeholder = PROMPTS[command] + 'func("relu"), node_fired or relu_1_2' * bool(command)
        self.line.display = True
        self.set_focus(self.line)  # at once: what is typed next is for it

    def action_close(self) -> None:
        self.set_focus(self.events)
        self.line.display = self.panes["answer"].display = False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.action_close()
        if self.asked:
            self.say(f"{self.asked} {event.value}")
        else:
            self.answer_to(event.value)
        if self.session.is_over:
            self.exit()

    # -- what is said and shown

    def say(self, line: str) -> list[str]:
        """Say something; a refusal is shown in its place."""
        try:
            answer = self.session.answer(line)
        except TorchLensError as exc:
            self.said.update(Text(printable(str(exc)), style="bold red"))
            return []
        self.said.update("")
        self.refresh_all()
        return answer

    def answer_to(self, line: str) -> None:
        answer = self.say(line)
        if answer:
            pane = self.panes["answer"]
            pane.border_title = printable(line)
            pane.show(answer)
            pane.display = True

    def look(self) -> None:
        """Show that there are more events, where somebody writes."""
        if self.session.cursor.num_events != self.known:
            self.refresh_all()

    def refresh_all(self) -> None:
        cursor = self.session.cursor
        self.known = cursor.num_events
        self.sub_title = state_line(cursor)
        self.events.border_subtitle = self.sub_title
        self.show_events()
        for name, lines in (("record", record_lines), ("source", source_lines), ("values", value_lines)):
            self.panes[name].show(lines(cursor))

    @property
    def num_rows(self) -> int:
        return max(1, self.events.content_size.height)

    def show_events(self) -> None:
        """The events around the cursor, as many as there is room for."""
        cursor, rows = self.session.cursor, self.num_rows
        here = cursor.position - 1
        start = max(0, min(here - rows // 2, cursor.num_events - rows))
        text = Text(no_wrap=True, overflow="ellipsis")
        for stamped in cursor.whole.events(start, start + rows):
            style = "reverse" if stamped.at == here else ""
            text.append(f"{self.session.line(stamped)}\n", style=style)
        self.events.update(text)
