"""What a selector asks for while the model runs is what it finds in the finished trace."""

from __future__ import annotations

import copy
import functools
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchlens as tl
from projections.errors import NotYetKnown
from projections.selecting.nearby import everywhere
from projections.selecting.selector import Selector
from torchlens.capture.facts import TOLD, Facts
from torchlens.capture.keeping import Keeper
from torchlens.errors import TorchLensWarning

# -- models


class Pair(nn.Module):
    """Hands its input on beside what it makes."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.relu(x)


class Remembers(nn.Module):
    """Returns what it was not given, and writes a buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        last, self.last = self.last, x
        self.seen = self.seen + 1
        return x if last is None else last


class Writes(nn.Module):
    """Returns memory that was written through another name."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y[:, :2].relu_()
        return y


def written(x: Tensor) -> Tensor:
    x[:, :2].mul_(0.5)
    return x


STEPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "fc": lambda self, x: self.fc(x),
    "alias": lambda self, x: self.alias(x),
    "same": lambda self, x: self.same(x),
    "wrapped": lambda self, x: self.wrapped(x),
    "block": lambda self, x: self.block(x),
    "norm": lambda self, x: self.norm(x),
    "pair": lambda self, x: sum(self.pair(x)),
    "remembers": lambda self, x: self.remembers(x),
    "writes": lambda self, x: self.writes(x),
    "found": lambda self, x: self.unregistered[0](x),
    "chunk": lambda self, x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "max": lambda self, x: x + x.max(1, keepdim=True).values,
    "loop": lambda self, x: sum((torch.tanh(x) * k for k in range(3)), x),
    "written": lambda self, x: self.same(written(x * 1)),
    "relu_": lambda self, x: torch.relu_(x * 1),
    "dead": lambda self, x: (self.fc(torch.ones(1, 4)), torch.ones(3).sum(), x)[2],
    "view": lambda self, x: x.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4),
    "constant": lambda self, x: x + self.constant,
}


class Built(nn.Module):
    """A model of named steps; modules have aliases, one is unregistered, and what is returned may be many things."""

    def __init__(self, steps: tuple[str, ...], returns: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.steps, self.returns = steps, returns
        self.fc, self.same, self.norm, self.pair = nn.Linear(4, 4), nn.Identity(), nn.BatchNorm1d(4), Pair()
        self.alias = self.fc
        self.wrapped = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity()))
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Identity())
        self.remembers, self.writes = Remembers(), Writes()
        self.unregistered = [nn.Sigmoid()]
        self.constant = torch.ones(4)

    def forward(self, x: Tensor) -> Any:
        first = x
        for step in self.steps:
            x = STEPS[step](self, x)
        return {
            "one": x,
            "input": (x, first),
            "twice": [x, x],
            "module": self.same(x),
            "constant": {"c": self.constant},
        }[self.returns]


RETURNS = ("one", "input", "twice", "module", "constant")

models = st.builds(Built, st.lists(st.sampled_from(sorted(STEPS)), max_size=6).map(tuple), st.sampled_from(RETURNS))

# -- selectors


def is_wide(op: Any) -> bool:
    return len(op.shape) == 2 and bool(op.dtype == torch.float32)


def is_inside(op: Any) -> bool:
    return op.module is not None and not op.is_buffer and op.requires_grad


def is_used_once(op: Any) -> bool:
    return bool(op.num_children == 1)


def is_labelled_first(op: Any) -> bool:
    return op.func_name != "linear" and op.label.endswith("_1")


FUNCTIONS = ("linear", "relu", "relu_", "identity", "none", "output", "input", "buffer", "batch_norm", "chunk", "add")
ADDRESSES = (
    *(
        "self",
        "fc",
        "alias",
        "fc:1",
        "alias:2",
        "fc:last",
        "alias:all",
        "same",
        "same:1",
        "wrapped",
        "wrapped.1",
        "block",
    ),
    *("block.2", "norm", "pair", "remembers:2", "writes", "~Sigmoid_1", "self:last", "", "nowhere"),
)
LABELS = (
    *("relu_1_2:1", "linear_1_1:all", "identity_1:last", "output_1:1", "input_1:1", "buffer_1:1", "linear_2_raw"),
    *("identity_3_raw", "output_9_raw", "mul_1:2"),
)

labelled = st.one_of(
    st.sampled_from(LABELS).map(tl.label),
    st.sampled_from(["1:", "_1_", "relu_", "_raw", "y_3_raw"]).map(tl.contains),
    st.sampled_from(["_1$", "^output", ":2", "_[34]_raw"]).map(tl.regex),
    st.sampled_from([is_used_once, is_labelled_first]).map(tl.where),
)
decided = st.one_of(
    st.sampled_from(FUNCTIONS).map(tl.func),
    st.sampled_from([address for address in ADDRESSES if not address.endswith("last")]).map(tl.module),
    st.sampled_from([address for address in ADDRESSES if not address.endswith("last")]).map(tl.in_module),
    st.sampled_from(["LIN", "relu", "out"]).map(tl.contains),
    st.sampled_from([0, 1, "values", "indices"]).map(tl.output),
    st.sampled_from([is_wide, is_inside]).map(tl.where),
)
terms = st.one_of(
    decided, labelled, st.sampled_from(ADDRESSES).map(tl.module), st.sampled_from(ADDRESSES).map(tl.in_module)
)


def combined(inner: st.SearchStrategy[Selector]) -> st.SearchStrategy[Selector]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda pair: pair[0] | pair[1]),
        pairs.map(lambda pair: pair[0] & pair[1]),
        pairs.map(lambda pair: pair[0] - pair[1]),
        inner.map(lambda one: ~one),
        st.tuples(inner, st.integers(0, 3)).map(lambda pair: tl.preceded_by(pair[0], within=pair[1])),
        st.tuples(inner, st.integers(0, 3)).map(lambda pair: tl.followed_by(pair[0], within=pair[1])),
    )


selectors = st.recursive(terms, combined, max_leaves=4)


@contextmanager
def quietly() -> Iterator[None]:
    """A request that matches nothing is told; here it may."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchLensWarning)
        yield


X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5


def traced(model: Built, **asked: Any) -> tl.Trace:
    """A trace of the model as it stands: what it writes to its buffers, it writes to those of a copy."""
    return tl.trace(copy.deepcopy(model), X, **asked)


def values_of(trace: tl.Trace, rows: Any) -> set[int]:
    values = trace.table("ops").column("value")
    return {values[row] for row in rows}


@given(models, selectors)
@settings(max_examples=120, deadline=None)
@example(Built(("writes",), "one"), tl.module("writes"))
@example(Built(("same", "wrapped"), "one"), ~tl.module("same"))
@example(Built(("remembers", "fc", "remembers"), "one"), tl.module("remembers:2"))
@example(Built((), "input"), tl.func("output"))
@example(Built(("written",), "one"), tl.module("same"))
@example(Built(("written",), "one"), tl.in_module("same"))
def test_saving_by_a_selector_keeps_exactly_what_it_finds(model: Built, selector: Selector) -> None:
    keeps_what_it_finds(model, selector)


@given(models, st.lists(st.sampled_from(ADDRESSES).map(tl.module), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_what_modules_alone_are_asked_for_is_exactly_what_they_return(model: Built, named: list[Selector]) -> None:
    keeps_what_it_finds(model, functools.reduce(operator.or_, named))


def test_a_request_for_modules_alone_asks_about_no_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, facts: Any) -> bool:
        raise AssertionError(facts)

    monkeypatch.setattr(type(tl.module("0")), "live", refuse)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.ReLU(inplace=True))
    trace = tl.trace(model, X, save=[tl.module("0") | tl.module("2:1"), "1"])
    assert trace.saved_ops.labels == ("linear_1_1", "relu_1_2", "relu_2_3", "output_1")
    trace.cleanup()


def keeps_what_it_finds(model: Built, selector: Selector) -> None:
    everything = traced(model)
    found = everything[selector]
    with quietly():
        saved = traced(model, save=selector)
    assert saved.ops.labels == everything.ops.labels
    kept = values_of(saved, (op.row for op in saved.saved_ops))
    assert kept == values_of(saved, (site.row for site in found))
    for op in saved.saved_ops:
        assert torch.equal(op.out, everything.ops[op.row].out)


@given(models, st.recursive(decided, combined, max_leaves=3))
@settings(max_examples=80, deadline=None)
@example(Built((), "one"), tl.preceded_by(tl.followed_by(tl.func("linear"))))
@example(Built(("remembers",), "one"), tl.preceded_by(tl.followed_by(tl.func("linear"))))
def test_a_forward_is_left_at_the_first_op_that_is_known_to_match(model: Built, selector: Selector) -> None:
    if selector.ahead or selector.waits_for_end:
        with pytest.raises(tl.TorchLensError, match="stop_after_site_not_live"):
            traced(model, stop_after=selector)
        return
    everything = traced(model, capture=tl.CaptureOptions(keep_orphans=True))
    rows, islands = everywhere(selector, everything.tables, everything.records)
    if not rows and not islands:
        with pytest.raises(tl.TorchLensError, match="stop_after_never_fired"):
            traced(model, stop_after=selector)
        return
    left = traced(model, stop_after=selector)
    if selector.names_modules or islands:  # known when a module is left; or met, and left out of the whole forward
        return
    first = everything.ops[min(rows)]
    if first.is_output:
        assert left.status == "complete"
        return
    assert left.status == "halted"
    last = left.table("capture").value("halted_at", 0)
    assert last == everything.tables.forward.rows.event[first.row]
    assert [op.raw_label for op in left.ops if not op.is_output][-1] in {op.raw_label for op in everything.ops}


@given(models, st.sampled_from([name + call for name in (*STEPS, "unknown") for call in ("", ":1", ":2")]))
@settings(max_examples=80, deadline=None)
@example(Built(("pair",), "input"), "pair")
@example(Built(("remembers", "fc", "remembers"), "one"), "remembers:2")
def test_to_stop_after_a_module_alone_is_to_stop_where_its_selector_says(model: Built, address: str) -> None:
    def left(stop: Any, save: Any) -> tuple[Any, ...]:
        try:
            trace = traced(model, stop_after=stop, save=save)
        except tl.TorchLensError as refused:
            return (refused.code,)
        kept = [op.out for op in trace.saved_ops]
        at = trace.table("capture").value("halted_at", 0)
        return trace.status, at, trace.ops.labels, trace.module_calls.labels, [tensor.tolist() for tensor in kept]

    for save in ([], None):
        alone, among_others = tl.module(address), tl.module(address) & tl.module(address)
        assert left(alone, save) == left(among_others, save)


def test_a_model_that_catches_everything_is_left_where_it_was_asked_to_be() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.inner(x)
            except BaseException:  # noqa: BLE001  # what is tried here
                return torch.tanh(x) + 1

    trace = tl.trace(Stubborn(), torch.ones(2), stop_after="inner")
    assert trace.status == "halted"
    assert [op.layer_type for op in trace.ops if op.is_compute_op] == ["relu"]
    assert trace.output_ops[0].parents == ("relu_1_1",)


def test_a_predicate_reads_the_same_names_live_and_finished() -> None:
    told: list[dict[str, Any]] = []

    def listen(op: Any) -> bool:
        if isinstance(op, Facts):
            told.append({name: getattr(op, name) for name in TOLD})
        return True

    model = Built(tuple(sorted(STEPS)), "input")
    trace = traced(model, save=tl.where(listen), capture=tl.CaptureOptions(keep_orphans=True))
    finished = {op.raw_label: {name: getattr(op, name) for name in TOLD} for op in (*trace.ops, *trace.orphans)}
    assert {facts["raw_label"] for facts in told} == set(finished)
    for facts in told:
        assert facts == finished[facts["raw_label"]]


def test_what_is_not_known_yet_is_asked_of_the_finished_op() -> None:
    """A predicate may read any field but values; what is no field is a mistake in it."""
    model = Built(("loop", "block"), "one")
    with quietly():
        for test in (is_used_once, lambda op: op.layer.num_passes == 3, lambda op: op.code_context and op.param_shapes):
            trace = traced(model, save=tl.where(test))
            assert values_of(trace, (op.row for op in trace.saved_ops)) == values_of(trace, trace[tl.where(test)].rows)
            assert trace.saved_ops
    for test in (lambda op: op.out.sum() > 0, lambda op: op.num_childs):
        with pytest.raises(tl.errors.ConfigurationError) as refused:
            traced(model, save=tl.where(test))
        assert refused.value.code == "predicate_evaluation_failed"


@pytest.mark.parametrize(
    "stop",
    [
        lambda op: op.label == "relu_1_2",
        tl.where(is_used_once),
        tl.label("relu_1_2"),
        tl.followed_by("relu_1_2"),
        tl.preceded_by("relu_1_2"),
        ~tl.module("0"),
        tl.in_module("0:last"),
        tl.grad(tl.func("relu")),
    ],
)
def test_a_stop_that_needs_what_is_not_known_yet_is_refused(stop: Any) -> None:
    with pytest.raises(tl.errors.ConfigurationError) as refused:
        tl.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2), stop_after=stop)
    assert refused.value.code == "stop_after_site_not_live"


def test_a_fact_that_is_not_there_yet_is_refused_by_its_name() -> None:
    facts: list[Any] = []
    tl.trace(nn.ReLU(), torch.ones(1), stop_after=lambda op: bool(facts.append(op)) or op.func_name == "relu")
    with pytest.raises(NotYetKnown) as refused:
        _ = facts[-1].num_children
    assert refused.value.code == "fact_not_live"
    assert refused.value.fields["name"] == "num_children"


BACKWARD = [
    tl.grad("relu_1_1") | "relu_1_1",
    tl.grad_fn("relu"),
    tl.without_op(),
    tl.func("relu") & tl.grad_input(),
    ~tl.grad_output(),
    tl.in_backward_pass(1),
    tl.preceded_by(tl.grad_fn("relu")),
]


@pytest.mark.parametrize("selector", BACKWARD, ids=repr)
def test_a_forward_refuses_what_asks_of_a_backward(selector: tl.Selector) -> None:
    for ask in (
        lambda: tl.trace(nn.ReLU(), torch.ones(1), save=selector),
        lambda: tl.record(nn.ReLU(), torch.ones(1), save=["relu_1_1", selector]),
        lambda: tl.extract(nn.ReLU(), torch.ones(1), [selector]),
    ):
        with pytest.raises(tl.errors.SelectionError) as refused:
            ask()
        assert refused.value.code == "selector_names_gradients"
    with pytest.raises(tl.errors.ConfigurationError) as stopped:
        tl.trace(nn.ReLU(), torch.ones(1), stop_after=selector)
    assert stopped.value.code == "stop_after_site_not_live"


@pytest.mark.parametrize("selector", BACKWARD, ids=repr)
def test_before_any_backward_there_is_nothing_that_it_did(selector: tl.Selector) -> None:
    trace = tl.trace(nn.ReLU(), torch.ones(1))
    for ask in (lambda: trace[selector], lambda: trace.find_sites(selector), lambda: selector in trace):
        with pytest.raises(tl.errors.SelectionError) as refused:
            ask()
        assert refused.value.code == "gradient_sites_unavailable"


# -- what is held, and for how long


class Chain(nn.Module):
    """Twenty pairs of a linear layer and a relu, written out as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(20))

    def forward(self, x: Tensor) -> Tensor:
        for pair in self.pairs:
            x = pair(x)
        return x


@contextmanager
def most_held() -> Iterator[list[int]]:
    """How many values the captures inside have pinned at once, at most."""
    most = [0]
    pin = Keeper.pin

    def counted(self: Keeper, *args: Any, **kwargs: Any) -> None:
        pin(self, *args, **kwargs)
        most[0] = max(most[0], len(self.pins))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Keeper, "pin", counted)
        yield most


@pytest.mark.parametrize(
    ("save", "most"),
    [
        (tl.func("relu") & tl.label("relu_1_2"), 20),  # relus only, while labels are not there
        (tl.label("relu_1_2"), 20),  # its type says as much
        (tl.label("input_1"), 1),
        (tl.module("pairs.3"), 1),  # when the module is left
        (tl.func("linear") & tl.followed_by(tl.func("sigmoid"), within=3), 3),  # until three more have run
        (tl.func("linear") & tl.preceded_by(tl.func("sigmoid"), within=3), 0),
        (tl.func("relu") & tl.followed_by(tl.func("linear")) & tl.in_module("pairs.0"), 1),
    ],
    ids=repr,
)
def test_no_more_is_held_than_may_still_be_wanted(save: Selector, most: int) -> None:
    with most_held() as held, quietly():
        trace = tl.trace(Chain(), torch.ones(2, 8), save=save)
    assert held[0] <= most + 1  # the value that is just being asked about
    assert {op.row for op in trace.saved_ops} >= {site.row for site in trace[save]}


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (tl.module("hea"), "no module 'hea' (did you mean 'head'?)"),
        (tl.in_module("hea:2") & tl.func("linear"), "no module 'hea' (did you mean 'head'?)"),
        (tl.label("linear_9_9"), "no label 'linear_9_9'"),
        (tl.func("torch.relu"), "tl.func takes the bare name 'relu', not 'torch.relu'"),
        (tl.func("rely"), "no function 'rely' (did you mean 'relu'?)"),
    ],
)
def test_a_selection_of_nothing_says_what_the_trace_has_not(worked: tl.Trace, selector: Any, said: str) -> None:
    empty = worked[selector]
    assert len(empty) == 0
    assert said in repr(empty)
    with pytest.raises(tl.TorchLensError, match="site_table_empty") as caught:
        empty.first()
    assert said in str(caught.value)


def test_a_selection_of_nothing_that_names_what_there_is_says_no_more(worked: tl.Trace) -> None:
    assert repr(worked[tl.func("relu") & tl.func("linear")]) == "<Selection of 0 sites>"


def test_the_greatest_of_a_label_that_is_not_there_says_so(worked: tl.Trace) -> None:
    with pytest.raises(tl.TorchLensError, match="no label 'no_such_label'") as caught:
        worked[tl.top_k("no_such_label")]
    assert caught.value.code == "selection_unresolvable"
    assert caught.value.fields["reason"] == "population_too_small"
