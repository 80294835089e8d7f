"""Amounts as they are said: by pictures, by what a Trace prints, and (tests/browser) by a page."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchlens as tl
from projections.wording import bytes_text, thousands, time_text, work_text
from tests.amounts import BYTES, FLOPS, TIMES

UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


@given(st.integers(0, 10**18))
def test_a_count_reads_back_within_half_of_its_third_digit(number: int) -> None:
    digits, _, prefix = thousands(number).partition(" ")
    assert abs(float(digits.replace(",", "")) * UNITS[prefix] - number) <= 0.005001 * number


@given(st.integers(0, 10**18))
def test_bytes_read_back_within_half_of_the_digit_after_the_point(number: int) -> None:
    digits, unit = bytes_text(number).split(" ")
    unit = unit.removesuffix("B")
    size = 1024 ** "KMGT".index(unit) * 1024 if unit else 1
    assert abs(float(digits) * size - number) <= 0.0501 * size


@given(st.floats(1e-9, 1e6))
def test_a_time_reads_back_within_half_of_its_last_digit(seconds: float) -> None:
    digits, unit = time_text(seconds).split(" ")
    assert re.fullmatch(r"\d{1,3}(\.\d{1,2})?", digits)
    assert abs(float(digits) * SECONDS[unit] - seconds) <= max(0.005001 * seconds, 0.0501 * SECONDS[unit])


@pytest.mark.parametrize(("number", "said"), BYTES)
def test_bytes_are_said_in_units_of_1024(number: int, said: str) -> None:
    assert bytes_text(number) == str(tl.Bytes(number)) == said
    assert bytes_text(-number) == (f"-{said}" if number else said)


@pytest.mark.parametrize(("seconds", "said"), TIMES)
def test_a_time_is_said_in_the_unit_of_which_there_is_one(seconds: float, said: str) -> None:
    assert time_text(seconds) == str(tl.Duration(seconds)) == said
    assert time_text(-seconds) == (f"-{said}" if seconds else said)


@pytest.mark.parametrize(("number", "said"), FLOPS)
def test_work_is_said_with_three_digits(number: int, said: str) -> None:
    assert work_text(number, "FLOPs") == str(tl.Flops(number)) == said
    assert work_text(-number, "FLOPs") == (f"-{said}" if number else said)
