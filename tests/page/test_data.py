"""The data of a page agrees with the records of its trace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

import torchlens as tl
from tests.page.examples import EXAMPLES, chain
from torchlens.page.data import page_data

TABLES = ("calls", "ops", "edges", "gradients", "passes", "firings")


@pytest.fixture(scope="module")
def traces() -> Mapping[str, tl.Trace]:
    return {name: (chain(50) if name == "chain" else make()) for name, make in EXAMPLES.items()}


@pytest.fixture(scope="module", params=EXAMPLES)
def trace(request: pytest.FixtureRequest, traces: Mapping[str, tl.Trace]) -> tl.Trace:
    return traces[request.param]


@pytest.fixture(scope="module")
def data(trace: tl.Trace) -> dict[str, Any]:
    return page_data(trace)


def texts(data: dict[str, Any], table: str, column: str) -> list[str | None]:
    return [None if number is None else data["texts"][number] for number in data[table][column]]


def test_the_data_is_what_it_is_after_json(data: dict[str, Any]) -> None:
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_columns_of_a_table_are_of_one_length(data: dict[str, Any]) -> None:
    for table in TABLES:
        assert len({len(column) for column in data[table].values()}) == 1, table


def test_every_op_stands_once_and_in_order(trace: tl.Trace, data: dict[str, Any]) -> None:
    broken = data["ending"] is not None and data["ending"]["op"] is not None
    assert texts(data, "ops", "label")[: -1 if broken else None] == trace.op_labels
    assert texts(data, "ops", "kind").count("failed") == broken
    assert texts(data, "calls", "label") == list(trace.module_calls.labels)
