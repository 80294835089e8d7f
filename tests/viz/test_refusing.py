"""Messages stay short and printable, whatever was given, and name the word that was meant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.torchlens.models import refusal
from torchlens.errors import ConfigurationError
from torchlens.viz import registry
from torchlens.viz.refusing import MOST_LETTERS, one_of, quoted
from torchlens.viz.themes import theme_of


@given(st.text() | st.binary() | st.lists(st.text()))
def test_a_value_is_quoted_in_a_short_printable_text(value: Any) -> None:
    shown = quoted(value)
    assert shown.isprintable()
    assert len(shown) <= MOST_LETTERS
    if len(repr(value)) <= MOST_LETTERS and repr(value).isprintable():
        assert shown == repr(value)


@given(st.text(max_size=200) | st.integers())
def test_every_word_that_may_be_given_is_named(value: Any) -> None:
    remedy = one_of(value, ("light", "dark"), "or a theme")
    assert remedy.endswith("give one of 'light', 'dark', or a theme")


def test_the_word_that_was_meant_comes_first() -> None:
    assert one_of("lihgt", ("dark", "light")) == "did you mean 'light'? give one of 'dark', 'light'"
    with pytest.raises(ConfigurationError, match=r"did you mean 'paper'\? .* or a tl\.viz\.Theme"):
        theme_of("papr")
    with pytest.raises(ConfigurationError, match=r"did you mean 'graphviz'\? .*register_renderer"):
        registry.known("graphvis")
    assert refusal(lambda: theme_of(3), ConfigurationError) == "visualization_theme_invalid"
