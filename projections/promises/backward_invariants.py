"""The promises that records of backward passes keep, each one a named function.

Reads  finished tables.
Rule   as in invariants.py, which checks these behind its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from projections.build import CaptureTables
from projections.promises.promise import (
    FEW,
    SMALL,
    Breaches,
    Promise,
    fact_is,
    marked,
    named,
    picked,
    shown,
    total,
    unequal,
)
from projections.structure.details import item_bytes


def backward_passes_are_dense(tables: CaptureTables) -> Breaches:
    """Passes count from 1, and one inside another began after it."""
    passes = tables.backward_passes
    yield from unequal(passes, "pass_index", "pass_index", range(1, 1 + len(passes)))
    for row, outer in enumerate(passes.column("outer_row")):
        if outer >= row:
            yield str(passes.value("pass_index", row)), "it began before the pass that it is inside of"
    wanted = (None if outer < 0 else outer + 1 for outer in passes.column("outer_row"))
    yield from unequal(passes, "pass_index", "outer_context", wanted)


RETURNED: Final = {"ok", "incomplete"}

ENDS: Final = {"engine_error": {"error"}, "sync_point": {"ok", "incomplete", "error"}}
"""What a pass without an exception may be that was closed so; otherwise ok or incomplete."""


def backward_passes_end_as_they_were_closed(tables: CaptureTables) -> Breaches:
    """A pass that raised is an error, one without an end is unfinished, and one that returned is neither."""
    passes = tables.backward_passes
    columns = (passes.column(name) for name in ("pass_index", "status", "closed_by", "error_type", "incomplete_reason"))
    for index, status, closed_by, error, reason in zip(*columns, strict=True):
        told = {"error"} if error is not None else ENDS.get(closed_by, RETURNED)
        right = {"unfinished"} if closed_by is None else told
        if status not in right:
            yield str(index), f"its status is {status}, and it was closed by {closed_by}"
        if (status == "incomplete" and reason is None) or (status == "ok" and reason is not None):
            yield str(index), f"its status is {status}, and what kept the rest from being recorded is {reason!r}"
    flags = (trigger == "implicit" for trigger in passes.column("trigger"))
    yield from unequal(passes, "pass_index", "implicit", flags)


def grad_fns_are_one_for_each_node(tables: CaptureTables) -> Breaches:
    """No two records are of one autograd node, or share a label."""
    for column in ("grad_fn_object_id", "label"):
        for name, count in Counter(tables.grad_fns.column(column)).items():
            if count > 1:
                yield str(name), f"{count} autograd nodes have it as {column}"


def grad_fn_labels_spell_their_numbers(tables: CaptureTables) -> Breaches:
    """A node counts among its type and among all, in the order in which nodes stand."""
    nodes = tables.grad_fns
    counts: Counter[str] = Counter()
    columns = (nodes.column(name) for name in ("label", "type", "type_index"))
    for row, (label, kind, index) in enumerate(zip(*columns, strict=True), 1):
        counts[kind] += 1
        if index != counts[kind] or label != f"{kind}_back_{index}_{row}":
            yield str(label), f"it is number {counts[kind]} of its type and {row} of all"
    yield from unequal(nodes, "label", "ordinal_index", range(len(nodes)))
    yield from unequal(nodes, "label", "step_index", range(1, 1 + len(nodes)))


def grad_fn_edges_mirror_each_other(tables: CaptureTables) -> Breaches:
    """A node is among the children of each of its parents and of no other, by row and by label."""
    nodes = tables.grad_fns
    labels, up, down = (nodes.column(name) for name in ("label", "parent_rows", "child_rows"))
    there = {(parent, row) for row, found in enumerate(up) for parent in found}
    back = {(row, child) for row, found in enumerate(down) for child in found}
    for parent, child in there ^ back:
        yield labels[child], f"the edge from {labels[parent]} is known on one side only"
    for column, rows in (("parents", up), ("children", down)):
        yield from unequal(nodes, "label", column, (named(labels, found) for found in rows))
        yield from unequal(nodes, "label", f"has_{column}", (bool(found) for found in rows))


def grad_fns_know_who_is_beside_them(tables: CaptureTables) -> Breaches:
    """Siblings are the other children of the parents, co-parents the other parents of the children."""
    nodes = tables.grad_fns
    labels, up, down = (nodes.column(name) for name in ("label", "parent_rows", "child_rows"))
    for column, there, back in (("siblings", up, down), ("co_parents", down, up)):
        found, flags = nodes.column(column), nodes.column(f"has_{column}")
        for row, near in enumerate(there):
            if flags[row] != any(len(back[other]) > 1 for other in near):
                yield labels[row], f"its has_{column} is {flags[row]}"
            if len(nodes) > SMALL or sum(len(back[other]) for other in near) > FEW:
                continue
            right = sorted({one for other in near for one in back[other]} - {row})
            if found[row] != named(labels, right):
                yield labels[row], f"its {column} are {shown(found[row])}"


def firings_are_counted_by_node(tables: CaptureTables) -> Breaches:
    """The firings of a node count from 1, and it knows each of them."""
    calls, nodes = tables.grad_fn_calls, tables.grad_fns
    counts, labels = Counter[int](), nodes.column("label")
    of: Sequence[int] = calls.column("grad_fn_row")
    indexes: list[int] = []
    for row in of:
        counts[row] += 1
        indexes.append(counts[row])
    yield from unequal(calls, "call_label", "call_index", indexes)
    yield from unequal(calls, "call_label", "label", picked(labels, of))
    spelled = (f"{label}:{index}" for label, index in zip(calls.column("label"), indexes, strict=True))
    yield from unequal(calls, "event", "call_label", spelled)
    rows: list[list[int]] = [list[int]() for _ in labels]
    for call, row in enumerate(of):
        rows[row].append(call)
    yield from unequal(nodes, "label", "num_calls", map(len, rows))
    yield from unequal(nodes, "label", "call_rows", map(tuple, rows))
    names = calls.column("call_label")
    yield from unequal(nodes, "label", "call_labels", (named(names, found) for found in rows))


def firings_stand_in_their_pass(tables: CaptureTables) -> Breaches:
    """A pass has its firings in their order, and each knows its pass and its place there."""
    calls, passes = tables.grad_fn_calls, tables.backward_passes
    rows: list[list[int]] = [list[int]() for _ in range(len(passes))]
    places: list[int] = []
    numbers: Sequence[int] = calls.column("pass_row")
    for call, number in enumerate(numbers):
        places.append(len(rows[number]))
        rows[number].append(call)
    yield from unequal(calls, "call_label", "ordinal_in_pass", places)
    indexes = (number + 1 for number in numbers)
    yield from unequal(calls, "call_label", "backward_pass_index", indexes)
    names = calls.column("call_label")
    yield from unequal(passes, "pass_index", "num_grad_fn_calls", map(len, rows))
    yield from unequal(passes, "pass_index", "call_rows", map(tuple, rows))
    yield from unequal(passes, "pass_index", "grad_fn_calls", (named(names, found) for found in rows))


def orders_follow_the_creators(tables: CaptureTables) -> Breaches:
    """What a pass made is one order above its creator, whom it names; where nobody knows that, it has no order."""
    nodes = tables.grad_fns
    orders, labels, creators = (nodes.column(name) for name in ("order", "label", "creator_row"))
    for row, (order, origin, creator) in enumerate(
        zip(orders, nodes.column("origin_backward_pass"), creators, strict=True)
    ):
        before = None if creator < 0 else orders[creator]
        right = 1 if origin is None else None if before is None else before + 1
        if order != right or (origin is None and creator >= 0):
            yield labels[row], f"its order is {order} and not {right}"
    names = (None if creator < 0 else labels[creator] for creator in creators)
    yield from unequal(nodes, "label", "differentiates", names)
    numbers = nodes.column("grad_fn_object_id")
    ids = (None if creator < 0 else numbers[creator] for creator in creators)
    yield from unequal(nodes, "label", "creator_object_id", ids)


def creators_fired_in_the_pass_of_origin(tables: CaptureTables) -> Breaches:
    """The firing that made a node is one of its creator, in the pass that the node came from."""
    nodes, calls = tables.grad_fns, tables.grad_fn_calls
    columns = ("label", "creator_row", "creator_call_row", "origin_backward_pass")
    for label, creator, call, origin in zip(*(nodes.column(name) for name in columns), strict=True):
        if call >= 0 and (
            calls.value("grad_fn_row", call) != creator or calls.value("backward_pass_index", call) != origin
        ):
            yield label, "another node or pass fired what made it"


def orders_of_passes_are_those_of_their_firings(tables: CaptureTables) -> Breaches:
    """A pass has the highest order of the nodes that fired, its origin with it, and the part whose orders are known."""
    passes, nodes = tables.backward_passes, tables.grad_fns
    orders, of = nodes.column("order"), tables.grad_fn_calls.column("grad_fn_row")
    origins = nodes.column("origin_backward_pass")
    columns = (passes.column(name) for name in ("pass_index", "implicit", "order", "origin_backward_pass", "call_rows"))
    for index, implicit, order, origin, calls in zip(*columns, strict=True):
        found = [orders[of[call]] for call in calls]
        right = max(found, default=None) if None not in found and not implicit else None
        if order != right:
            yield str(index), f"its order is {order} and not {right}"
        made_by = [one for call in calls if orders[of[call]] == right and (one := origins[of[call]]) is not None]
        came = None if right is None else max(made_by, default=None)
        if origin != came:
            yield str(index), f"its origin is {origin} and not {came}, at order {right}"
    made: list[list[int | None]] = [list[int | None]() for _ in range(len(passes))]
    told_by: Sequence[int] = nodes.column("pass_row")
    for number, is_made, order in zip(told_by, nodes.column("is_made"), orders, strict=True):
        if is_made:
            made[number].append(order)
    known = (1.0 if not found else (len(found) - found.count(None)) / len(found) for found in made)
    yield from unequal(passes, "pass_index", "order_attribution_coverage", known)


def inner_nodes_lie_behind_their_op(tables: CaptureTables) -> Breaches:
    """An inner node has no op of its own, and each node of an op that leads to it is of the same call."""
    nodes, ops = tables.grad_fns, tables.ops
    labels, inner, chosen = nodes.column("label"), nodes.column("inner_of"), nodes.column("op_row")
    calls = dict(zip(ops.column("label"), ops.column("func_call_id"), strict=True))
    names = ops.column("label")
    for row, label in enumerate(inner):
        if label is None:
            continue
        if chosen[row] >= 0 or label not in calls:
            yield labels[row], f"it is an inner node of {label!r}, and has an op, or there is no such op"
            continue
        above = [names[chosen[one]] if chosen[one] >= 0 else inner[one] for one in nodes.column("parent_rows")[row]]
        if not any(one is not None and calls[one] == calls[label] for one in above):
            yield labels[row], f"it is an inner node of {label!r}, and no node of that call leads to it"


def grad_fns_and_ops_know_each_other(tables: CaptureTables) -> Breaches:
    """A node's op is one that stands at its outputs, and every op names the node that it stands at."""
    nodes, ops = tables.grad_fns, tables.ops
    labels, names = nodes.column("label"), ops.column("label")
    at = ops.column("grad_fn_row")
    yield from unequal(ops, "label", "grad_fn_label", (None if row < 0 else labels[row] for row in at))
    for row, (op, others) in enumerate(zip(nodes.column("op_row"), nodes.column("op_rows"), strict=True)):
        if op != (others[0] if others else -1) or any(at[other] != row for other in others):
            yield labels[row], "its ops stand at another node, or one of them is left out"
    chosen = nodes.column("op_row")
    yield from unequal(nodes, "label", "op_label", (None if op < 0 else names[op] for op in chosen))
    yield from unequal(nodes, "label", "has_op", (op >= 0 for op in chosen))
    yield from inner_nodes_lie_behind_their_op(tables)
    params, gathered = tables.params.column("address"), nodes.column("param_row")
    yield from unequal(nodes, "label", "param_address", (None if row < 0 else params[row] for row in gathered))


def membership_is_told_by_its_source(tables: CaptureTables) -> Breaches:
    """A paired node belongs where its op ran, an inferred one where some parent does, any other nowhere."""
    nodes, ops, calls = tables.grad_fns, tables.ops, tables.module_calls
    places, sources, up = (nodes.column(name) for name in ("modules", "module_membership_source", "parent_rows"))
    address = dict(zip(calls.column("call_label"), calls.column("address"), strict=True))
    columns = (nodes.column(name) for name in ("label", "op_row", "param_row"))
    for row, (label, op, param) in enumerate(zip(*columns, strict=True)):
        is_right = {
            None: not places[row] and op < 0,
            "paired": param >= 0 or op < 0 or places[row] == tuple([address[c] for c in ops.value("modules", op)]),
            "inferred": op < 0 and any(places[other] == places[row] for other in up[row]),
        }
        if not is_right.get(sources[row], False):
            yield label, f"it is {sources[row]} in {shown(places[row])}"
    innermost = (found[-1] if found else None for found in places)
    yield from unequal(nodes, "label", "module_address", innermost)


def gradients_and_their_owners_know_each_other(tables: CaptureTables) -> Breaches:
    """Each gradient is of an op or of a parameter, which counts its own from 0."""
    gradients = tables.gradients
    by_owner: dict[tuple[str, int], list[int]] = {}
    counts = [
        kind != "op" or saved
        for kind, saved in zip(gradients.column("owner_kind"), gradients.column("is_saved"), strict=True)
    ]
    names = {"op": tables.ops.column("label"), "param": tables.params.column("address")}
    columns = (gradients.column(name) for name in ("owner_kind", "owner", "op_row", "param_row", "ordinal"))
    for row, (kind, owner, op, param, ordinal) in enumerate(zip(*columns, strict=True)):
        number, other = (op, param) if kind == "op" else (param, op)
        own = by_owner.setdefault((kind, number), [])
        if other != -1 or kind not in names or names[kind][number] != owner or ordinal != len(own):
            yield str(owner), f"gradient {row} is another's, or not number {ordinal} of it"
        own.append(row)
    for kind, table, key, count in (
        ("op", tables.ops, "label", "num_saved_grads"),
        ("param", tables.params, "address", "num_increments"),
    ):
        rows = [tuple(by_owner.get((kind, row), ())) for row in range(len(table))]
        yield from unequal(table, key, "gradient_rows", rows)
        saved = [sum(picked(counts, found)) for found in rows]
        yield from unequal(table, key, count, saved)
        shown = table.column("origin_row") if kind == "op" else range(len(rows))
        yield from unequal(table, key, "has_grad", (bool(found) for found in picked(saved, shown)))


def gradients_are_described_at_their_owners(tables: CaptureTables) -> Breaches:
    """An op shows the first of its gradients and the bytes of all, a parameter the last."""
    gradients = tables.gradients
    shapes, dtypes, sizes = (gradients.column(name) for name in ("shape", "dtype", "memory"))
    kept_sizes = [size if saved else 0 for size, saved in zip(sizes, gradients.column("is_saved"), strict=True)]
    for table, key, place in ((tables.ops, "label", 0), (tables.params, "address", -1)):
        rows = table.column("gradient_rows")
        shown_shapes = (shapes[found[place]] if found else None for found in rows)
        yield from unequal(table, key, "grad_shape", shown_shapes)
        yield from unequal(table, key, "grad_dtype", (dtypes[found[place]] if found else None for found in rows))
        bytes_of = (sum(picked(kept_sizes, found) if place == 0 else picked(sizes, found[-1:])) for found in rows)
        yield from unequal(table, key, "gradient_memory", bytes_of)
    wanted = (item_bytes(dtype, math.prod(shape)) for shape, dtype in zip(shapes, dtypes, strict=True))
    yield from unequal(gradients, "owner", "memory", wanted)
    kept = (payload is not None for payload in gradients.column("payload_ref"))
    yield from unequal(gradients, "owner", "is_saved", kept)


def outputs_have_no_gradient_of_their_own(tables: CaptureTables) -> Breaches:
    """The gradient of an output is that of the op that it was returned from; what an op has is kept."""
    ops, gradients = tables.ops, tables.gradients
    for label, is_output, count in zip(
        *(ops.column(n) for n in ("label", "is_output", "num_saved_grads")), strict=True
    ):
        if is_output and count:
            yield label, "it is an output and has gradients"
    columns = (gradients.column(n) for n in ("owner", "op_row", "is_saved", "has_stored_stats"))
    for owner, op, is_saved, is_measured in zip(*columns, strict=True):
        if op >= 0 and not is_saved and not is_measured:
            yield owner, "it has a gradient of which nothing was kept"


def gradients_stand_in_the_pass_of_their_firing(tables: CaptureTables) -> Breaches:
    """A gradient and the firing that it arrived at are of one node and one pass."""
    gradients, calls, nodes = tables.gradients, tables.grad_fn_calls, tables.grad_fns
    columns = ("owner", "call_row", "grad_fn_row", "pass_row", "param_row")
    for owner, call, node, number, param in zip(*(gradients.column(name) for name in columns), strict=True):
        if call < 0 and param >= 0:
            yield owner, "nothing gathered what was added to it"
        if call >= 0 and (calls.value("grad_fn_row", call), calls.value("pass_row", call)) != (node, number):
            yield owner, "its gradient arrived at a firing of another node, or pass"
    indexes = (number + 1 for number in gradients.column("pass_row"))
    yield from unequal(gradients, "owner", "backward_pass_index", indexes)
    labels = picked(nodes.column("label"), gradients.column("grad_fn_row"))
    yield from unequal(gradients, "owner", "grad_fn_label", labels)


def kept_gradients_of_firings_are_described(tables: CaptureTables) -> Breaches:
    """Each kept gradient of a firing has its shape beside it, and whatever has one is saved."""
    calls, nodes = tables.grad_fn_calls, tables.grad_fns
    columns = ("call_label", "is_saved", "grad_outputs", "grad_outputs_like", "grad_inputs", "grad_inputs_like")
    for label, is_saved, *sides in zip(*(calls.column(name) for name in columns), strict=True):
        for kept, likes in (sides[:2], sides[2:]):
            if [one is None for one in kept or ()] != [one is None for one in likes or ()]:
                yield label, "a gradient of it is kept and not described, or described and not kept"
        if is_saved != any(kept is not None for kept in (sides[0], sides[2])):
            yield label, f"its is_saved is {is_saved}"
    saved = calls.column("is_saved")
    flags = (any(picked(saved, rows)) for rows in nodes.column("call_rows"))
    yield from unequal(nodes, "label", "has_saved_call", flags)


def memory_of_gradients_adds_up(tables: CaptureTables) -> Breaches:
    """The bytes of gradients of a layer are those of its passes, of a module call those of the ops inside."""
    ops, layers, calls = tables.ops, tables.layers, tables.module_calls
    sizes = ops.column("gradient_memory")
    yield from unequal(
        layers, "layer_label", "total_gradient_memory", (sum(picked(sizes, rows)) for rows in layers.column("op_rows"))
    )
    for name in ("has_grad", "save_grads"):
        flags = (any(picked(ops.column(name), rows)) for rows in layers.column("op_rows"))
        yield from unequal(layers, "layer_label", name, flags)
    outputs = calls.column("output_op_rows")
    shown = [frozenset(picked(ops.column("origin_row"), rows)) for rows in outputs]
    yield from unequal(calls, "call_label", "output_gradient_memory", (sum(picked(sizes, rows)) for rows in shown))
    inside = (
        sum(picked(sizes, set(rows) - leaving)) for rows, leaving in zip(calls.column("op_rows"), shown, strict=True)
    )
    yield from unequal(calls, "call_label", "internal_gradient_memory", inside)


def times_of_grad_fns_are_those_of_their_firings(tables: CaptureTables) -> Breaches:
    """The time of a node is that of its firings, where each was timed; one alone is told for itself."""
    if not tables.has_diary:
        return
    nodes = tables.grad_fns
    times = tables.grad_fn_calls.column("backward_duration")
    columns = ("label", "call_rows", "backward_duration", "total_backward_duration")
    for label, rows, only, every in zip(*(nodes.column(name) for name in columns), strict=True):
        found = picked(times, rows)
        right = None if not found or None in found else sum(found)
        if (every is None) != (right is None) or (right is not None and not math.isclose(every, right, abs_tol=1e-12)):
            yield label, f"its total_backward_duration is {every} and not {right}"
        if only != (found[0] if len(found) == 1 else None):
            yield label, f"its backward_duration is {only}"


def backward_counts_add_up(tables: CaptureTables) -> Breaches:
    """What the capture counts of its backward passes is what the tables hold."""
    nodes, ops = tables.grad_fns, tables.ops
    yield from fact_is(tables, "num_backward_passes", len(tables.backward_passes))
    yield from fact_is(tables, "has_backward_pass", len(tables.backward_passes) > 0)
    passes = tables.backward_passes
    yield from fact_is(tables, "num_failed_backward_passes", list(passes.column("status")).count("error"))
    timed = zip(passes.column("duration"), passes.column("outer_context"), strict=True)
    times = [time for time, around in timed if around is None and time is not None]
    yield from fact_is(tables, "backward_duration", sum(times) if times else None)
    yield from fact_is(tables, "num_grad_fns", len(nodes))
    with_op = sum(map(bool, nodes.column("has_op")))
    yield from fact_is(tables, "num_grad_fns_with_op", with_op)
    yield from fact_is(tables, "num_grad_fns_without_op", len(nodes) - with_op)
    yield from fact_is(tables, "num_grad_fn_calls", len(tables.grad_fn_calls))
    yield from fact_is(tables, "num_backward_edges", sum(map(len, nodes.column("child_rows"))))
    rows = tuple(marked(ops.column("num_saved_grads")))
    yield from fact_is(tables, "saved_grad_rows", rows)
    yield from fact_is(tables, "saved_grad_ops", named(ops.column("label"), rows))


WITNESS: Final = "checkpoint_invocation_witness"


def checkpoints_are_witnessed_by_firings(tables: CaptureTables) -> Breaches:
    """Tokens count from 1, each window is a firing in its pass, and the verdict follows from tokens and flags."""
    told = tables.fact(WITNESS)
    if told is None:
        yield from fact_is(tables, "has_backward_pass", False)
        return
    count = told["token_count"]
    if list(told["tokens"]) != list(range(1, 1 + count)):
        yield WITNESS, f"it counts {count} tokens, and tells of others"
    found = f"{'checkpoint_invocations' if count else 'no_checkpoint_invocation'}_observed"
    if told["verdict"] != ("evidence_incomplete" if told["degrade_flags"] else found):
        yield WITNESS, f"its verdict is {told['verdict']}"
    calls = tables.grad_fn_calls
    firings = set(zip(*(calls.column(name) for name in ("backward_pass_index", "label", "call_index")), strict=True))
    keys = set(tables.ops.column("site_key"))
    for number, token in told["tokens"].items():
        windows = token["window_evidence"]
        if len(windows) > token["unpack_evidence_count"]:
            yield WITNESS, f"token {number} has more windows than were unpacked"
        if any(call is not None and (index, label, call) not in firings for index, label, call in windows):
            yield WITNESS, f"token {number} has a window that is no firing"
        if not keys.issuperset(token["site_key_candidates"]):
            yield WITNESS, f"token {number} has a candidate that is no op"


def dispatched_ops_know_where_they_ran(tables: CaptureTables) -> Breaches:
    """An operator names the node and the firing that it ran in, which is of its pass, and the op of that node."""
    table, nodes, calls = tables.dispatched_ops, tables.grad_fns, tables.grad_fn_calls
    labels, indexes = nodes.column("label"), calls.column("call_index")
    ops = [paired or inner for paired, inner in zip(nodes.column("op_label"), nodes.column("inner_of"), strict=True)]
    of_node, of_fire, of_pass = (table.column(name) for name in ("grad_fn_row", "call_row", "pass_row"))
    yield from unequal(table, "name", "grad_fn_label", (None if row < 0 else labels[row] for row in of_node))
    yield from unequal(table, "name", "op_label", (None if row < 0 else ops[row] for row in of_node))
    yield from unequal(table, "name", "call_index", (None if row < 0 else indexes[row] for row in of_fire))
    yield from unequal(table, "name", "backward_pass_index", (number + 1 for number in of_pass))
    fired, ran = calls.column("pass_row"), calls.column("grad_fn_row")
    for row, (fire, node, number) in enumerate(zip(of_fire, of_node, of_pass, strict=True)):
        if fire >= 0 and (fired[fire], ran[fire]) != (number, node):
            yield str(table.value("name", row)), "it ran in a firing of another pass or node"
    if not tables.has_diary:  # some of them are there
        return
    places: list[int] = []
    counts = Counter[int]()
    for number in of_pass:
        places.append(counts[number])
        counts[number] += 1
    yield from unequal(table, "name", "ordinal_in_pass", places)


def executed_flops_add_up(tables: CaptureTables) -> Breaches:
    """Those of the firings of a pass and what is unattributed are those of the pass, of the passes those of all."""
    passes, calls, flops = tables.backward_passes, tables.grad_fn_calls, tables.dispatched_ops.column("flops")
    whole, why = passes.column("executed_flops"), passes.column("executed_reason")
    for row, (executed, reason) in enumerate(zip(whole, why, strict=True)):
        if (executed is None) != (reason is not None):
            yield str(row + 1), f"it executed {executed}, and what keeps it from being counted is {reason!r}"
    numbers: Sequence[int] = calls.column("pass_row")
    each = [count or 0 for count in calls.column("flops")]
    if tables.has_diary:
        each = [sum(flops[row] or 0 for row in rows) for rows in calls.column("dispatched_rows")]
        counted = (None if whole[number] is None else one for number, one in zip(numbers, each, strict=True))
        yield from unequal(calls, "call_label", "flops", counted)
        known = [sum(flops[row] is not None for row in rows) for rows in calls.column("dispatched_rows")]
        counted = (None if whole[number] is None else one for number, one in zip(numbers, known, strict=True))
        yield from unequal(calls, "call_label", "num_counted_ops", counted)
    apart = [sum(flops[row] or 0 for row in rows) for rows in passes.column("unattributed_rows")]
    left = (None if executed is None else one for executed, one in zip(whole, apart, strict=True))
    yield from unequal(passes, "pass_index", "unattributed_flops", left)
    fired = [sum(picked(each, rows)) for rows in passes.column("call_rows")]
    added = (None if one is None else of + out for one, of, out in zip(whole, fired, apart, strict=True))
    yield from unequal(passes, "pass_index", "executed_flops", added)
    if len(passes) and tables.fact("executed_reason") is None:
        yield from fact_is(tables, "executed_flops", total(whole))
    elif len(passes):
        yield from fact_is(tables, "executed_flops", None)


def dispatched_ops_are_each_in_one_place(tables: CaptureTables) -> Breaches:
    """An operator of a pass ran in one of its firings, in no recorded node, or in a node of another capture."""
    if not tables.has_diary:
        return
    passes, fired = tables.backward_passes, tables.grad_fn_calls.column("dispatched_rows")
    columns = ("call_rows", "unattributed_rows", "other_trace_rows", "dispatched_rows")
    for index, calls, apart, others, rows in zip(
        passes.column("pass_index"), *(passes.column(name) for name in columns), strict=True
    ):
        if sorted([*(row for call in calls for row in fired[call]), *apart, *others]) != list(rows):
            yield str(index), "one of its operators is in several places, or in none"


def recompute_is_part_of_what_was_executed(tables: CaptureTables) -> Breaches:
    """What ran a forward again is all that ran with grad mode on, or nothing, or not known; passes have the sum."""
    passes, calls, table = tables.backward_passes, tables.grad_fn_calls, tables.dispatched_ops
    flops, modes = table.column("flops"), table.column("grad_enabled")
    columns = ("call_label", "dispatched_rows", "flops", "recompute_flops")
    again = calls.column("recompute_flops")
    told = zip(*(calls.column(name) for name in columns), strict=True) if tables.has_diary else ()
    for label, rows, executed, recompute in told:
        on = sum(flops[row] or 0 for row in rows if modes[row])
        if recompute is not None and (executed is None or recompute not in (0, on)):
            yield str(label), f"its recompute_flops is {recompute}"
    counted = zip(passes.column("executed_flops"), passes.column("call_rows"), strict=True)
    wanted = [None if executed is None else total(picked(again, rows)) for executed, rows in counted]
    yield from unequal(passes, "pass_index", "recompute_flops", wanted)
    if len(passes):
        whole = None if tables.fact("executed_flops") is None else total(wanted)
        yield from fact_is(tables, "recompute_flops", whole)


OF_BACKWARD: Final[Sequence[Promise]] = (
    backward_passes_are_dense,
    backward_passes_end_as_they_were_closed,
    grad_fns_are_one_for_each_node,
    grad_fn_labels_spell_their_numbers,
    grad_fn_edges_mirror_each_other,
    grad_fns_know_who_is_beside_them,
    firings_are_counted_by_node,
    firings_stand_in_their_pass,
    orders_follow_the_creators,
    creators_fired_in_the_pass_of_origin,
    orders_of_passes_are_those_of_their_firings,
    grad_fns_and_ops_know_each_other,
    membership_is_told_by_its_source,
    gradients_and_their_owners_know_each_other,
    gradients_are_described_at_their_owners,
    outputs_have_no_gradient_of_their_own,
    gradients_stand_in_the_pass_of_their_firing,
    kept_gradients_of_firings_are_described,
    memory_of_gradients_adds_up,
    times_of_grad_fns_are_those_of_their_firings,
    backward_counts_add_up,
    checkpoints_are_witnessed_by_firings,
    dispatched_ops_know_where_they_ran,
    dispatched_ops_are_each_in_one_place,
    executed_flops_add_up,
    recompute_is_part_of_what_was_executed,
)
"""All of them, in the order in which they are checked."""
