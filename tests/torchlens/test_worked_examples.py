"""The worked examples of the documentation, on real models: labels, parents, grouping, in-place, buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchlens as tl

# The code block of the specification, as it stands there ---------------------------------------------


class Looped(nn.Module):
    def forward(self, x):  # type: ignore[no-untyped-def]
        for _ in range(3):
            x = torch.tanh(x) * 0.5
        return x


def test_a_loop_is_one_layer_with_three_passes() -> None:
    trace = tl.trace(Looped(), torch.ones(2, 4))
    tanh_layers = [layer for layer in trace.layers if layer.func_name == "tanh"]
    assert len(tanh_layers) == 1
    assert tanh_layers[0].num_passes == 3


# Labels ------------------------------------------------------------------------------------------------


class Body(nn.Module):
    """A model whose forward is a function of the model and its arguments."""

    def __init__(self, forward: Callable[..., Any], **children: Any) -> None:
        super().__init__()
        self.__dict__["body"] = forward
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["body"](self, *args, **kwargs)


def labels(model: nn.Module, *args: Any, **kwargs: Any) -> str:
    trace = tl.trace(model, list(args), kwargs)
    trace.check_metadata_invariants()
    return " ".join(trace.ops.labels)


def inner(model: nn.Module, *args: Any, **kwargs: Any) -> str:
    """Labels without inputs, outputs and buffers."""
    trace = tl.trace(model, list(args), kwargs)
    trace.check_metadata_invariants()
    return " ".join(op.label for op in trace.ops if op.is_compute_op)


def test_a_straight_line_is_numbered_call_by_call() -> None:
    trace = tl.trace(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(5, 4))
    rows = [(op.label, op.modules, op.parents, op.step_index, op.ordinal_index) for op in trace.ops]
    assert rows == [
        ("input_1", (), (), 0, 0),
        ("linear_1_1", ("0:1",), ("input_1",), 1, 1),
        ("relu_1_2", ("1:1",), ("linear_1_1",), 2, 2),
        ("linear_2_3", ("2:1",), ("relu_1_2",), 3, 3),
        ("output_1", (), ("linear_2_3",), 3, 4),
    ]


def test_a_call_after_a_loop_is_a_layer_of_its_own() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(x) * 0.5
        x = torch.relu(x)
        return torch.tanh(x)

    assert labels(Body(forward), torch.randn(2)) == (
        "input_1 tanh_1_1:1 mul_1_2:1 tanh_1_1:2 mul_1_2:2 tanh_1_1:3 mul_1_2:3 relu_1_3 tanh_2_4 output_1"
    )


def test_sources_and_dead_ends_stay_and_islands_go() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        n = torch.randn(2)
        z = torch.zeros(2)
        u = torch.ones(3) * 2
        (u + 1).sum()  # touches neither input nor output
        s = x.sum()
        torch.sin(x)
        if s > 0:
            x = x * 2
        return x + n + z, z

    assert labels(Body(forward), torch.ones(2)) == (
        "input_1 randn_1_1 zeros_1_2 sum_1_3 sin_1_4 gt_1_5 mul_1_6 add_1_7 add_2_8 output_1 output_2"
    )


def test_every_slot_of_a_call_is_a_layer() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        for _ in range(2):
            a, b = x.chunk(2, 1)
            x = torch.cat([b, a], 1)
        return x

    trace = tl.trace(Body(forward), torch.randn(2, 4))
    assert " ".join(op.label for op in trace.ops if op.is_compute_op) == (
        "chunk_1_1:1 chunk_2_2:1 cat_1_3:1 chunk_1_1:2 chunk_2_2:2 cat_1_3:2"
    )
    first, second = trace.ops[1], trace.ops[2]
    assert (first.multi_output_index, second.multi_output_index) == (0, 1)
    assert first.func_call_id == second.func_call_id
    assert second.in_multi_output
    assert trace.ops[3].multi_output_index is None


def test_named_slots_say_their_names() -> None:
    trace = tl.trace(Body(lambda self, x: x.max(1).values), torch.randn(2, 3))
    first, second = (op for op in trace.ops if op.func_name == "max")
    assert (first.multi_output_name, second.multi_output_name) == ("values", "indices")
    assert second.is_internal_sink


def test_inputs_and_outputs_are_numbered_by_leaves() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor, y: Tensor | None = None, d: Any = None) -> Any:
            assert y is not None
            z = x + y
            w = d["k"][0] * d["q"]
            return {"a": z, "b": (z, x, w), "c": 3, "n": None}

    trace = tl.trace(Net(), [torch.ones(2)], {"y": torch.ones(2), "d": {"k": [torch.ones(2)], "q": 5}})
    assert [op.io_role for op in trace.ops if op.is_input] == ["input.x", "input.y", "input.d.k.0"]
    outputs = [op for op in trace.ops if op.is_output]
    assert [op.io_role for op in outputs] == ["output.a", "output.b.0", "output.b.1", "output.b.2"]
    assert outputs[0].parents == outputs[1].parents == ("add_1_1",)
    assert outputs[2].parents == ("input_1",)


def test_one_tensor_in_two_places_is_one_input() -> None:
    x = torch.ones(2)
    trace = tl.trace(Body(lambda self, a, b: a * b), [x, x])
    assert trace.input_layers == ["input_1"]
    assert trace.ops["mul_1_1"].parents == ("input_1", "input_1")


def test_in_place_calls_are_ops_whose_parent_is_the_last_writer() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x * 1
        x.add_(1)
        x += 2
        y = F.relu(x, inplace=True)
        x[0] = 5.0
        x[:, 1].mul_(3)
        return x + y

    trace = tl.trace(Body(forward), torch.randn(3, 4))
    assert " ".join(op.label for op in trace.ops if op.is_compute_op) == (
        "mul_1_1 add_1_2 iadd_1_3 relu_1_4 setitem_1_5 getitem_1_6 mul_2_7 add_2_8"
    )
    assert [op.parents for op in trace.ops if op.is_compute_op] == [
        ("input_1",),
        ("mul_1_1",),
        ("add_1_2",),
        ("iadd_1_3",),
        ("relu_1_4",),
        ("setitem_1_5",),
        ("getitem_1_6",),
        ("mul_2_7", "mul_2_7"),
    ]


def test_a_batch_norm_in_training_reads_and_writes_versions() -> None:
    norm = nn.BatchNorm1d(4)
    model = Body(lambda self, x: self.bn((x + 1) * 2 - 3), bn=norm).train()
    trace = tl.trace(model, torch.randn(5, 4))
    found = [(op.label, op.parents, op.address, op.buffer_write_kind) for op in trace.ops if op.is_buffer]
    assert found == [
        ("buffer_1", (), "bn.num_batches_tracked", None),
        ("buffer_2", ("add_2_4",), "bn.num_batches_tracked", "inplace"),
        ("buffer_3", (), "bn.running_mean", None),
        ("buffer_4", (), "bn.running_var", None),
        ("buffer_5", ("batchnorm_1_5",), "bn.running_mean", "fused"),
        ("buffer_6", ("batchnorm_1_5",), "bn.running_var", "fused"),
    ]
    assert torch.equal(trace["bn.running_mean:2"].out, norm.running_mean)


def test_an_assigned_buffer_is_a_version() -> None:
    class Counter(nn.Module):
        h: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.h = self.h + x
            return self.h * 2

    trace = tl.trace(Counter(), torch.ones(2))
    written = [op for op in trace.ops if op.is_buffer and op.buffer_write_kind]
    assert [(op.label, op.parents, op.buffer_write_kind) for op in written] == [("buffer_2", ("add_1_1",), "reassign")]
    assert trace["mul_1_2"].parents == ("buffer_2",)


# Grouping ----------------------------------------------------------------------------------------------


def helper(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


def looping_helper(x: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.tanh(x)
    return x


def recursive(x: Tensor, n: int) -> Tensor:
    return recursive(torch.tanh(x), n - 1) if n else x


def by_hand(self: Any, x: Tensor) -> Tensor:
    x = torch.tanh(x) * 0.5
    x = torch.tanh(x) * 0.5
    x = torch.tanh(x) * 0.5
    return x


def nested(self: Any, x: Tensor) -> Tensor:
    for _ in range(2):
        x = torch.sin(x)
        for _ in range(3):
            x = torch.cos(x)
    return x


def shared_at_two_sites(self: Any, x: Tensor) -> Tensor:
    x = torch.relu(self.fc(x))
    x = torch.relu(self.fc(x))
    return x


def shared_in_a_loop(self: Any, x: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.relu(self.fc(x))
    return x


def several_in_a_loop(self: Any, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = torch.relu(layer(x))
    return x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc(x)) + x


def two_blocks_twice(self: Any, x: Tensor) -> Tensor:
    for _ in range(2):
        for block in self.blocks:
            x = block(x)
    return x


def helper_thrice(self: Any, x: Tensor) -> Tensor:
    x = helper(x)
    x = helper(x)
    for _ in range(2):
        x = helper(x)
    return x


def looping_twice(self: Any, x: Tensor) -> Tensor:
    x = looping_helper(x)
    return looping_helper(x)


class Again(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor, n: int = 2) -> Tensor:
        x = torch.relu(self.fc(x))
        return self(x, n - 1) if n else x


def alternating(self: Any, x: Tensor) -> Tensor:
    for i in range(4):
        x = torch.cos(x) if i % 2 else torch.sin(x)
    return x


def clamping(self: Any, x: Tensor) -> Tensor:
    for i in range(2):
        x = torch.clamp(x, -1, 1 + i)
    return x


def growing(self: Any, x: Tensor) -> Tensor:
    for _ in range(2):
        x = torch.cat([x, x], 1)
    return x


def halving(self: Any, x: Tensor) -> Tensor:
    while x.max() > 0.2:
        x = x / 2
    return x


def reused_module(self: Any, x: Tensor) -> Tensor:
    x = self.r(torch.sin(x))
    return self.r(torch.cos(x))


GROUPINGS = [
    (Looped(), "tanh_1_1:1 mul_1_2:1 tanh_1_1:2 mul_1_2:2 tanh_1_1:3 mul_1_2:3"),
    (Body(by_hand), "tanh_1_1 mul_1_2 tanh_2_3 mul_2_4 tanh_3_5 mul_3_6"),
    (Body(lambda self, x: torch.tanh(torch.tanh(torch.tanh(x)))), "tanh_1_1 tanh_2_2 tanh_3_3"),
    (Body(nested), "sin_1_1:1 cos_1_2:1 cos_1_2:2 cos_1_2:3 sin_1_1:2 cos_1_2:4 cos_1_2:5 cos_1_2:6"),
    (
        Body(lambda self, x: torch.stack([torch.exp(x + i) for i in range(3)]).sum()),
        "add_1_1:1 exp_1_2:1 add_1_1:2 exp_1_2:2 add_1_1:3 exp_1_2:3 stack_1_3 sum_1_4",
    ),
    (Body(shared_at_two_sites, fc=nn.Linear(2, 2)), "linear_1_1:1 relu_1_2 linear_1_1:2 relu_2_3"),
    (
        Body(shared_in_a_loop, fc=nn.Linear(2, 2)),
        "linear_1_1:1 relu_1_2:1 linear_1_1:2 relu_1_2:2 linear_1_1:3 relu_1_2:3",
    ),
    (
        Body(several_in_a_loop, layers=nn.ModuleList(nn.Linear(2, 2) for _ in range(3))),
        "linear_1_1 relu_1_2:1 linear_2_3 relu_1_2:2 linear_3_4 relu_1_2:3",
    ),
    (
        Body(two_blocks_twice, blocks=nn.ModuleList([Block(), Block()])),
        " ".join(f"linear_1_1:{k} relu_1_2:{k} add_1_3:{k} linear_2_4:{k} relu_2_5:{k} add_2_6:{k}" for k in (1, 2)),
    ),
    (Body(helper_thrice), "tanh_1_1 mul_1_2 tanh_2_3 mul_2_4 tanh_3_5:1 mul_3_6:1 tanh_3_5:2 mul_3_6:2"),
    (Body(looping_twice), "tanh_1_1:1 tanh_1_1:2 tanh_1_1:3 tanh_2_2:1 tanh_2_2:2 tanh_2_2:3"),
    (Body(lambda self, x: recursive(x, 3)), "tanh_1_1 tanh_2_2 tanh_3_3"),
    (Again(), "linear_1_1:1 relu_1_2:1 linear_1_1:2 relu_1_2:2 linear_1_1:3 relu_1_2:3"),
    (Body(alternating), "sin_1_1:1 cos_1_2:1 sin_1_1:2 cos_1_2:2"),
    (Body(clamping), "clamp_1_1:1 clamp_1_1:2"),
    (Body(growing), "cat_1_1:1 cat_1_1:2"),
    (nn.Sequential(shared := nn.Linear(2, 2), shared), "linear_1_1:1 linear_1_1:2"),
    (Body(reused_module, r=nn.ReLU()), "sin_1_1 relu_1_2:1 cos_1_3 relu_1_2:2"),
    (Body(lambda self, x: self.r(x) + F.relu(x), r=nn.ReLU()), "relu_1_1 relu_2_2 add_1_3"),
]


@pytest.mark.parametrize(("model", "expected"), GROUPINGS, ids=range(len(GROUPINGS)))
def test_ops_that_are_the_same_code_share_a_layer(model: nn.Module, expected: str) -> None:
    assert inner(model, torch.full((2, 2), 0.3)) == expected


def test_a_while_test_is_one_site() -> None:
    assert inner(Body(halving), torch.ones(2)) == (
        "max_1_1:1 gt_1_2:1 truediv_1_3:1 max_1_1:2 gt_1_2:2 truediv_1_3:2 "
        "max_1_1:3 gt_1_2:3 truediv_1_3:3 max_1_1:4 gt_1_2:4"
    )


def test_chained_operators_are_apart() -> None:
    assert inner(Body(lambda self, x: x + x + x), torch.ones(2)) == "add_1_1 add_2_2"


# Modules -----------------------------------------------------------------------------------------------


def test_a_submodule_that_hands_its_input_on_gets_an_identity() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.ReLU())
    trace = tl.trace(model, torch.ones(1, 2))
    assert trace.ops.labels == ("input_1", "linear_1_1", "identity_1_2", "relu_1_3", "output_1")
    assert trace.ops["relu_1_3"].parents == ("identity_1_2",)
    assert torch.equal(trace.ops["identity_1_2"].out, trace.ops["linear_1_1"].out)


def test_aliases_of_a_module_are_one_module() -> None:
    model = nn.Module()
    model.a = nn.Linear(2, 2)
    model.b = model.a
    model.forward = lambda x: model.b(model.a(x))  # type: ignore[assignment]
    trace = tl.trace(model, torch.ones(1, 2))
    assert trace.modules["a"].all_addresses == trace.modules["b"].all_addresses
    assert trace.modules["b"].num_calls == 2
    assert trace.module_calls.labels == ("self:1", "a:1", "a:2")


def test_a_module_that_calls_itself_is_a_call_of_its_own() -> None:
    trace = tl.trace(Again(), torch.ones(1, 2))
    assert trace.module_calls.labels == ("self:1", "fc:1", "self:2", "fc:2", "self:3", "fc:3")


# The code blocks about backward passes, as they stand in the specification -----------------------------


def test_gradients_of_every_op_or_of_a_selection_are_saved() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    x = torch.randn(5, 4)

    trace = tl.trace(model, x, capture=tl.options.CaptureOptions(save_grads=True))
    trace.backward(trace[trace.output_layers[0]].out.sum())

    relu_trace = tl.trace(model, x, capture=tl.options.CaptureOptions(save_grads=tl.func("relu")))
    relu_trace.backward(relu_trace[relu_trace.output_layers[0]].out.sum())

    assert trace.saved_grad_ops.labels == ("linear_1_1", "relu_1_2", "linear_2_3")
    assert relu_trace.saved_grad_ops.labels == ("relu_1_2",)
    assert torch.equal(relu_trace["relu_1_2"].grad, trace["relu_1_2"].grad)
    hidden = torch.relu(model[0](x))
    (wanted,) = torch.autograd.grad(model[2](hidden).sum(), hidden)
    assert torch.equal(trace["relu_1_2"].grad, wanted)
    assert trace.autograd.grad_fns.labels == relu_trace.autograd.grad_fns.labels


def test_a_backward_reaches_the_stimulus() -> None:
    latent_dim = 3
    generator = nn.Sequential(nn.Linear(latent_dim, 8), nn.Tanh(), nn.Linear(8, 2))

    def score(image: Tensor) -> Tensor:
        return -image.square().sum()

    z = torch.nn.Parameter(torch.randn(1, latent_dim))
    optimizer = torch.optim.SGD([z], lr=0.1)
    before = z.detach().clone()
    trace = tl.trace(generator, z, capture=tl.options.CaptureOptions(save_grads=True))

    loss = score(trace[trace.output_layers[0]].out)
    trace.backward(loss)

    optimizer.step()  # reads z.grad
    stimulus_grad = trace[trace.input_layers[0]].grad

    assert z.grad is not None
    assert torch.equal(stimulus_grad, z.grad)
    assert torch.allclose(z, before - 0.1 * z.grad)  # torch multiplies and adds at once
    assert trace[trace.input_layers[0]].input_was_parameter
    assert trace.input_ops[0].label not in trace.params


def test_nodes_and_firings_are_found_by_label_position_and_pass() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    trace = tl.trace(model, torch.randn(5, 4), capture=tl.options.CaptureOptions(save_grads=True))
    for _ in range(2):
        trace.backward((trace.output_ops[0].out ** 2).mean(), retain_graph=True)

    grad_fn = trace.autograd.grad_fns["addmm_back_1_4"]
    first_call = grad_fn.calls[0]
    second_pass_call = grad_fn.calls.for_pass(2)

    assert trace.autograd.grad_fns.labels == (
        *("mean_back_1_1", "pow_back_1_2", "tanh_back_1_3", "addmm_back_1_4", "accumulategrad_back_1_5"),
        *("t_back_1_6", "accumulategrad_back_2_7", "mean_back_2_8", "pow_back_2_9"),
    )
    assert (grad_fn.op_label, grad_fn.modules) == ("linear_1_1", ["0"])
    assert (first_call.call_label, first_call.backward_pass_index) == ("addmm_back_1_4:1", 1)
    assert (second_pass_call.call_label, second_pass_call.call_index) == ("addmm_back_1_4:2", 2)
    assert trace["addmm_back_1_4:2"] == second_pass_call


def test_the_executed_flops_of_a_backward_by_op_and_by_call() -> None:
    from torchlens.report import backward_status, cost_tree

    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    trace = tl.trace(model, torch.randn(5, 4), capture=tl.options.CaptureOptions(backward_ready=True))
    trace.backward(trace[trace.output_layers[0]].out.sum())

    status = backward_status(trace)
    (attribution,) = status.flops_attributions
    attributed = sum(row.flops for row in attribution.rows)
    assert attributed + attribution.unattributed_flops == status.executed_flops
    by_op = attribution.flops_by_op()  # forward op label -> backward FLOPs
    tree = cost_tree(trace)
    assert sum(row.self_backward_flops for row in tree.rows) == status.executed_flops
    trace.cleanup()
    assert by_op == {"linear_2_3": 360, "linear_1_1": 240}
