"""In a notebook a trace shows itself: without script, escaped, and small however large it is."""

from __future__ import annotations

from tests.page.examples import chain, failed, recurrent
from tests.page.test_writing import Elements, hostile

ALLOWED = {"div", "strong", "span", "details", "summary", "em"}
STYLES = {"color:#777", "color:#b00020", "margin-left:1em", "margin-left:1.5em"}


def text_of(page: str) -> str:
    return " ".join(text for _, _, text in Elements(page).found)


def test_a_trace_tells_what_it_is_and_its_module_calls() -> None:
    shown = recurrent()._repr_html_()
    text = text_of(shown)
    assert "recurrent loop" in text
    assert "complete · 20 ops · 8 module calls" in text
    assert "2 backward passes" in text
    assert all(f"cell:{number} " in text for number in range(1, 7))
    assert shown.count("<details") == shown.count("</details>") == 1
    assert shown.count("<div") == shown.count("</div>")


def test_a_trace_and_its_modules_count_ops_and_time_as_the_summary_does() -> None:
    trace = recurrent()
    text = text_of(trace._repr_html_())
    assert f"{trace.func_calls_duration} in torch calls" in text
    root, cell = trace.module_calls[0], trace.module_calls["cell:1"]
    assert (root.num_ops, len(root.ops)) == (20, 22)
    assert f"20 ops · {root.func_calls_duration} in torch calls" in text
    assert f"1 op · {cell.func_calls_duration} in torch calls" in text


def test_a_failure_is_told_with_its_call_and_line() -> None:
    text = text_of(failed()._repr_html_())
    assert "cannot be multiplied" in text
    assert "linear(Tensor(shape=(3, 6)" in text
    assert "did not return" in text


def test_no_text_of_a_model_is_markup() -> None:
    shown = hostile()._repr_html_()
    for tag, attributes, _ in Elements(shown).found:
        assert tag in ALLOWED
        assert set(attributes) <= {"style", "open"}
        assert attributes.get("style", "color:#777") in STYLES
    assert "alert(1)" in text_of(shown)
    assert all(char.isprintable() or char == "\n" for char in shown)


def test_a_large_trace_is_shown_in_part_and_says_so() -> None:
    trace = chain(400)
    shown = trace._repr_html_()
    assert len(shown) < 60_000
    assert f"{len(trace.module_calls) - 150:,} module calls not shown" in text_of(shown)


def test_a_trace_that_was_cleaned_up_says_so() -> None:
    trace = chain(1)
    trace.cleanup()
    assert "cleaned up" in trace._repr_html_()
