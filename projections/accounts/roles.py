"""What rows of ops, of orphans and of layers are: inputs, outputs, versions of buffers, or ops."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from projections.columnar.tables import Table

__all__ = ["Role", "role_of", "roles_of"]

Role: TypeAlias = Literal["input", "output", "buffer", "op"]
"""A row has exactly one (invariant ``every_op_has_one_role``)."""


def roles_of(table: Table[Any]) -> list[Role]:
    """The role of each row."""
    columns = zip(table.column("is_buffer"), table.column("is_input"), table.column("is_output"), strict=True)
    return [role(*flags) for flags in columns]


def role_of(table: Table[Any], row: int) -> Role:
    """The role of one row."""
    value = table.value
    return role(value("is_buffer", row), value("is_input", row), value("is_output", row))


def role(is_buffer: object, is_input: object, is_output: object) -> Role:
    return "buffer" if is_buffer else "input" if is_input else "output" if is_output else "op"
