"""What people may type for an op, and the other names of modules.

Reads  labels, module boundaries, buffer versions.
Gives  keys of an op; a map from key to op rows; a map from module alias to address.
Rule   a key may name several rows: all passes of a layer, all outputs of a call. Which of them is meant, if
       any, is for the lookup to say.
"""

from __future__ import annotations

from projections.folds.graph import INPUT, OUTPUT
from projections.folds.vocabulary import names_of_modules
from projections.forward import Forward
from projections.structure.rows import is_buffer


def keys_of(forward: Forward, row: int) -> list[str]:
    """The texts that name this row and no other pass of its layer, labels first; of an island its raw label alone."""
    groups, labels, rows = forward.groups, forward.labels, forward.rows
    layer, index, function = groups.layer[row], groups.pass_index[row], rows.function[row]
    names = (labels.layer[layer], labels.layer_short[layer])
    keys: list[str] = []
    if not forward.orphaned:
        for name in dict.fromkeys(names):
            if groups.passes[layer] == 1:
                keys.append(name)
            keys.append(f"{name}:{index}")
    for call in forward.left_calls[row]:
        keys.append(forward.call_labels[call])
        module = forward.calls.module[call]
        if len(forward.calls_of[module]) == 1:
            keys.append(forward.words.module_path(module))
    if function in (INPUT, OUTPUT):
        role = forward.io_roles[row]
        if role is not None:
            keys.append(role)
    elif is_buffer(function):
        keys.append(f"{forward.buffer_address(rows.site[row])}:{rows.slot[row]}")
    keys.append(forward.raw_label(row))
    return list(dict.fromkeys(keys))


def every_keys(forward: Forward) -> list[list[str]]:
    """``keys_of`` every row."""
    groups, labels, left = forward.groups, forward.labels, forward.left_calls
    if forward.orphaned:
        return [keys_of(forward, row) for row in range(len(forward))]
    made: list[list[str]] = []
    for row, (layer, index, is_op) in enumerate(zip(groups.layer, groups.pass_index, forward.is_op, strict=True)):
        name, short = labels.layer[layer], labels.layer_short[layer]
        if left[row] or not is_op or name == short:
            made.append(keys_of(forward, row))
        elif groups.passes[layer] == 1:
            made.append([name, f"{name}:1", short, f"{short}:1", forward.raw_labels[row]])
        else:
            made.append([f"{name}:{index}", f"{short}:{index}", forward.raw_labels[row]])
    return made


def op_keys(forward: Forward) -> dict[str, tuple[int, ...]]:
    """Every key with the rows it names, ascending; bare names of layers with several passes name all of them."""
    found: dict[str, tuple[int, ...]] = {}

    def add(key: str, *rows: int) -> None:
        before = found.setdefault(key, rows)
        if before is not rows:
            found[key] = tuple(sorted({*before, *rows}))

    labels = forward.labels
    for layer, rows in enumerate(forward.layer_ops):
        for name in dict.fromkeys((labels.layer[layer], labels.layer_short[layer])):
            add(name, *rows)
            for index, row in enumerate(rows, 1):
                add(f"{name}:{index}", row)
    for call, name in enumerate(forward.call_labels[1:], 1):
        rows = tuple(sorted(forward.output_rows_of(call)))
        if rows:
            add(name, *rows)
            module = forward.calls.module[call]
            if len(forward.calls_of[module]) == 1:
                add(forward.words.module_path(module), *rows)
    for row in (*forward.input_rows, *forward.output_rows):
        role = forward.io_roles[row]
        if role is not None:
            add(role, row)
    for number, versions in forward.versions_of.items():
        for row in versions:
            add(f"{forward.buffer_address(number)}:{forward.rows.slot[row]}", row)
    for row in range(len(forward)):
        add(forward.raw_label(row), row)
    return found


def module_aliases(forward: Forward) -> dict[str, str]:
    """Address by every name of a module; an address is its own, whatever else is called so."""
    return names_of_modules((module.address, module.aliases) for module in forward.words.modules)
