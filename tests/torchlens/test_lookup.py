"""What ``trace[...]`` gives for every kind of key, in the order that is documented, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import torchlens as tl
from torchlens.errors import IndexOutOfRange, LookupRefused, SelectionError, SiteAmbiguityError
from torchlens.reading.fields import Record
from torchlens.reading.records import Buffer, Layer, Module, ModuleCall, Op, Param


def shown(found: object) -> str:
    """A record as its class and label."""
    assert isinstance(found, Record)
    return repr(found).split(" ")[0].removeprefix("<") + " " + repr(found).removesuffix(">").split(" ")[1]


TABLE = {
    # layer labels, passes, short labels
    "tanh_1_2": "Layer tanh_1_2",
    "tanh_1_2:2": "Op tanh_1_2:2",
    "tanh_1:2": "Op tanh_1_2:2",
    "tanh_1_2:last": "Op tanh_1_2:3",
    "tanh_1:last": "Op tanh_1_2:3",
    "linear_3_9": "Layer linear_3_9",
    "linear_3_9:1": "Op linear_3_9",
    "linear_3_9:last": "Op linear_3_9",
    "linear_3": "Op linear_3_9",
    "input_1": "Layer input_1",
    # modules called several times are no op keys; those called once are
    "fc": "Module fc",
    "blk": "Module blk",
    "blk.act": "Module blk.act",
    "head": "Op linear_3_9",
    "fc:2": "Op linear_1_1:2",
    "fc:last": "Op linear_1_1:3",
    "blk:1": "Op relu_1_4:1",
    # an alias stands for the address
    "also": "Module blk",
    "also:2": "Op relu_1_4:2",
    "also.act:1": "Op relu_1_4:1",
    # the root
    "self:1": "ModuleCall self:1",
    "self": "Module self",
    "": "Module self",
    # a module that returns no tensor, and one that was not called
    "scale": "Module scale",
    "scale:1": "ModuleCall scale:1",
    "scale:last": "ModuleCall scale:1",
    "unused": "Module unused",
    # parameters, buffers, their last names and aliases
    "fc.weight": "Param fc.weight",
    "also.lin.weight": "Param blk.lin.weight",
    "scale.factor": "Buffer scale.factor",
    "factor": "Buffer scale.factor",
    "scale.factor:1": "Op buffer_1",
    "scale.factor:last": "Op buffer_1",
    # where inputs and outputs sit, raw labels
    "input.x": "Op input_1",
    "output": "Op output_1",
    "linear_2_raw": "Op linear_1_1:1",
    # ignoring case
    "TANH_1_2": "Layer tanh_1_2",
    "Tanh_1_2:LAST": "Op tanh_1_2:3",
    "BLK": "Module blk",
    "ALSO:2": "Op relu_1_4:2",
    "FC.Weight": "Param fc.weight",
    # the only op whose keys hold the text
    "add": "Op add_1_8",
    "_3_9": "Op linear_3_9",
}


@pytest.mark.parametrize(("key", "expected"), TABLE.items())
def test_a_key_gives_the_first_thing_it_names(worked: tl.Trace, key: str, expected: str) -> None:
    assert shown(worked[key]) == expected


REFUSED = {
    "tanh_1": ("ambiguous_op_lookup", ("tanh_1_2:1", "tanh_1_2:2", "tanh_1_2:3")),
    "chunk": ("ambiguous_op_lookup", ("chunk_1_6", "chunk_2_7")),
    "weight": ("ambiguous_record_lookup", ("fc.weight", "blk.lin.weight", "head.weight", "unused.weight")),
}


@pytest.mark.parametrize(("key", "refusal"), REFUSED.items())
def test_a_key_that_names_several_is_refused_with_their_names(
    worked: tl.Trace, key: str, refusal: tuple[str, tuple[str, ...]]
) -> None:
    with pytest.raises(KeyError) as caught:
        worked[key]
    assert isinstance(caught.value, LookupRefused)
    assert (caught.value.code, caught.value.fields["candidates"]) == refusal


@pytest.mark.parametrize(("key", "count"), [("tanh_1_2:9", 3), ("tanh_1:0", 3), ("fc:4", 3), ("self:2", 1)])
def test_a_pass_that_is_not_there_is_refused_with_the_number_there_are(worked: tl.Trace, key: str, count: int) -> None:
    with pytest.raises(IndexOutOfRange) as caught:
        worked[key]
    assert caught.value.code == "op_lookup_pass_out_of_range"
    assert caught.value.fields["num_passes"] == count


@pytest.mark.parametrize(
    ("key", "suggestion"), [("tanh_1_3", "tanh_1_2"), ("heat", "head"), ("fc.weihgt", "fc.weight")]
)
def test_an_unknown_key_is_a_key_error_that_suggests_a_near_one(worked: tl.Trace, key: str, suggestion: str) -> None:
    with pytest.raises(KeyError) as caught:
        worked[key]
    assert isinstance(caught.value, LookupRefused)
    assert caught.value.code == "op_lookup_not_found"
    assert suggestion in caught.value.fields["suggestions"]
    assert suggestion in str(caught.value)
    assert "\\n" not in str(caught.value), "the text is a sentence, not the repr that KeyError shows"


def test_every_door_refuses_an_unknown_label_alike(worked: tl.Trace) -> None:
    doors = [worked.ops, worked.layers, worked.modules, worked.module_calls, worked.params, worked.buffers]
    for door in (worked, *doors):
        with pytest.raises(KeyError) as caught:
            door["no such thing"]
        assert isinstance(caught.value, LookupRefused)
        assert caught.value.code in ("op_lookup_not_found", "record_lookup_not_found")
        assert "no such thing" not in door


# -- positions


def test_positions_and_slices_are_those_of_the_ops(worked: tl.Trace) -> None:
    assert worked[0] == worked.ops[0] == worked["input_1"].ops[0]
    assert worked[-1].label == "output_1"
    assert worked[1:3] == [worked["linear_1_1:1"], worked["tanh_1_2:1"]]
    assert len(worked) == len(worked.ops) == len(list(worked))


@pytest.mark.parametrize("position", [18, -19, 10**9])
def test_a_position_that_is_not_there_is_a_key_and_an_index_error(worked: tl.Trace, position: int) -> None:
    with pytest.raises(IndexError) as caught:
        worked[position]
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, LookupRefused)
    assert caught.value.code == "op_lookup_index_out_of_range"


def test_a_key_of_a_strange_type_is_refused(worked: tl.Trace) -> None:
    for door in (worked, worked.ops, worked.params, worked["fc:all"]):
        with pytest.raises(LookupRefused) as caught:
            door[1.5]  # type: ignore[index]  # what a caller may get wrong
        assert caught.value.code == "lookup_key_type_invalid"
    with pytest.raises(LookupRefused) as caught:
        worked.ops.find(None)  # type: ignore[arg-type]  # the same
    assert caught.value.code == "lookup_key_type_invalid"


@pytest.mark.parametrize("key", [slice(None, None, 0), slice("a", None), slice(None, 1.5)])
def test_a_slice_that_names_no_positions_is_refused(worked: tl.Trace, key: slice) -> None:
    for door in (worked, worked.ops, worked.ops.compute, worked.params, worked["fc:all"]):
        with pytest.raises(LookupRefused) as caught:
            door[key]
        assert caught.value.code == "lookup_slice_invalid"


# -- selections


def test_all_passes_are_a_selection_in_order(worked: tl.Trace) -> None:
    passes = worked["tanh_1_2:all"]
    assert isinstance(passes, tl.Selection)
    assert passes.labels() == ("tanh_1_2:1", "tanh_1_2:2", "tanh_1_2:3")
    assert worked["fc:all"].labels() == ("linear_1_1:1", "linear_1_1:2", "linear_1_1:3")
    assert worked["also:all"].labels() == ("relu_1_4:1", "relu_1_4:2")
    assert worked["linear_3_9:all"].labels() == ("linear_3_9",)
    assert worked.ops["tanh_1_2:all"] == passes
    assert worked["self:all"].labels() == ("output_1",)
    assert len(worked["scale:all"]) == len(worked["unused:all"]) == 0


def test_a_selector_gives_a_selection(worked: tl.Trace) -> None:
    sites = worked[tl.func("tanh") | tl.module("head")]
    assert sites.labels() == ("tanh_1_2:1", "tanh_1_2:2", "tanh_1_2:3", "linear_3_9")
    first = sites.first()
    assert first.key == ("tanh_1_2", 1)
    assert first.mask.shape == (2, 4)
    assert first.mask.dtype is torch.bool
    assert first.mask.all()
    assert first.mask is not first.mask
    assert first.provenance.source == repr(tl.func("tanh") | tl.module("head"))
    assert torch.equal(first.out, first.op.out)
    assert bool(sites)
    assert not worked[tl.func("nothing")]


def test_a_predicate_is_asked_about_ops(worked: tl.Trace) -> None:
    sites = worked[tl.where(lambda op: isinstance(op, Op) and op.shape == (2, 2))]
    assert sites.labels() == ("chunk_1_6", "chunk_2_7", "add_1_8")


def test_a_bare_label_of_several_passes_is_refused_as_a_selector(worked: tl.Trace) -> None:
    with pytest.raises(SelectionError) as caught:
        worked[tl.label("tanh_1_2")]
    assert caught.value.code == "multipass_bare_label_ambiguous"
    assert worked[tl.label("tanh_1_2:2")].labels() == ("tanh_1_2:2",)


def test_selections_of_one_trace_combine_like_sets(worked: tl.Trace) -> None:
    tanh, all_of_fc = worked["tanh_1_2:all"], worked[tl.in_module("fc")]
    assert (tanh | all_of_fc) == (all_of_fc | tanh)
    assert not tanh & all_of_fc
    assert (tanh | all_of_fc) - all_of_fc == tanh
    assert ~~tanh == tanh
    assert len(~tanh) == len(worked) - 3


def test_selections_of_two_traces_do_not_combine(worked: tl.Trace, loaded: tl.Trace) -> None:
    with pytest.raises(SelectionError) as caught:
        worked["fc:all"] | loaded["fc:all"]
    assert caught.value.code == "selection_trace_mismatch"
    with pytest.raises(SelectionError) as caught:
        worked["fc:all"] & "fc"  # type: ignore[operator]  # what a caller may get wrong
    assert caught.value.code == "selection_operand_invalid"


def test_find_sites_is_the_selection_with_a_bound(worked: tl.Trace) -> None:
    assert worked.find_sites(tl.func("tanh")) == worked[tl.func("tanh")]
    assert worked.find_sites("linear_3_9").first().label == "linear_3_9"
    with pytest.raises(SiteAmbiguityError) as caught:
        worked.find_sites(tl.func("tanh"), max_fanout=2)
    assert caught.value.code == "site_fanout_exceeded"
    with pytest.raises(SelectionError) as refused:
        worked.find_sites("linear_3_9", strict=True)
    assert refused.value.code == "site_query_type_invalid"
    with pytest.raises(SelectionError) as empty:
        worked.find_sites(tl.func("nothing")).first()
    assert empty.value.code == "site_table_empty"


# -- laws


def test_every_key_of_an_op_that_names_it_alone_finds_it(worked: tl.Trace) -> None:
    for op in worked.ops:
        assert worked[op.label] in (op, op.layer)
        for key in op.lookup_keys:
            found = worked[key]
            assert found in (op, op.layer)
            assert found == op or key in (op.layer_label, op.layer_label_short)


def test_every_label_of_a_collection_finds_its_record_there(worked: tl.Trace) -> None:
    for collection in (worked.layers, worked.modules, worked.module_calls, worked.params, worked.buffers, worked.ops):
        for label, record in collection.items():
            assert collection[label] == record
            assert label in collection
            assert label in worked


@given(
    st.text(max_size=12) | st.builds("{}:{}".format, st.sampled_from(["tanh_1", "fc", "scale"]), st.text(max_size=3))
)
def test_any_text_gives_a_record_a_selection_or_a_coded_refusal(worked: tl.Trace, key: str) -> None:
    try:
        answer = worked[key]
    except LookupRefused as refused:
        answer = refused.code
    assert isinstance(answer, Op | Layer | Module | ModuleCall | Param | Buffer | tl.Selection | str)


def test_a_loaded_trace_answers_as_the_live_one(worked: tl.Trace, loaded: tl.Trace) -> None:
    for key in TABLE:
        assert shown(loaded[key]) == shown(worked[key])


def test_a_module_called_once_with_several_outputs_is_ambiguous() -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.sin(), x.cos()

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Pair()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = self.pair(x)
            return a + b

    trace = tl.trace(Holder(), torch.ones(2))
    for key in ("pair", "pair:1"):
        with pytest.raises(LookupRefused) as caught:
            trace[key]
        assert caught.value.code == "ambiguous_op_lookup"
    assert trace["pair:all"].labels() == ("sin_1_1", "cos_1_2")
    assert shown(trace.modules["pair"]) == "Module pair"
    with pytest.raises(ValueError, match="module_output_ambiguous"):
        _ = trace.modules["pair"].out
    assert len(trace.modules["pair"].outs) == 2
