"""Forty-six real architectures: tracing changes nothing, and the records agree with the reference.

The models are traced anew by ``tests/data/zoo/dump.py`` and compared with the stored dumps of the
reference, TorchLens 2.36.1, by ``tests/data/zoo/compare.py``, which says what each figure means. The
reference is evidence, not law: where it is wrong or we chose otherwise, ``docs/differences.md`` says so.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from types import ModuleType
from typing import Any, Final

import pytest

from tests.programs import ROOT, surroundings

ZOO = ROOT / "tests" / "data" / "zoo"
NAMES = sorted(path.stem for path in (ZOO / "peer").glob("[a-z]*.json"))
RTOL = 1e-4  # of each element; compare.py's own default, which covers another summation order in a kernel

FLOORS: Final = {
    "ops": 98.0,
    "edges": 98.0,
    "modules": 98.0,
    "calls": 98.0,
    "params": 98.0,
    "sites": 98.0,
    "rule_labels": 97.0,
    "plain": 100.0,
    "grad_fns": 99.9,
    "grad_fn_edges": 99.9,
    "pairing": 99.9,
    "param_grads": 100.0,
}
"""Least agreement over all models, in per cent."""

OTHER_GRADIENTS: Final = {
    ("patchtst_forecast", "broadcasttensors_1_93"): "the reference has none of what is handed on as it is",
    ("whisper_seq2seq", "embedding_1_7"): "the reference lets a frozen parameter require a gradient",
}
"""(model, the reference's label) of every gradient that differs from the reference's, and why. Those of ours are held
against torch itself in ``test_gradients.py``."""

OTHER_PAIRS: Final = {
    (
        "autocast_and_no_grad",
        "linear_1_1:2",
    ): "the reference pairs a pass under no_grad with the node of the pass before",
    (
        "autocast_and_no_grad",
        "linear_2_3:2",
    ): "the reference pairs a pass under no_grad with the node of the pass before",
    ("inplace_chain", "output_1"): "the reference shows the value before the writes through views",
}
"""(model, the reference's label) of every op that is paired with another autograd node, and why."""

ONLY_PLACED_THERE: Final = {
    ("perceiver_latents", "SoftmaxBackward0", "encoder.cross_attention.attention.self"): "nn.Softmax is made there, a "
    "module that the model does not register and that we name",
    ("whisper_seq2seq", "EmbeddingBackward0", "encoder.embed_positions"): "a node that only the reference has",
}
"""(model, class of a node, innermost module) that the reference alone has, and why."""

ONLY_THEIRS: Final = {
    "patchtst_forecast": {"AccumulateGrad": 1},
    "whisper_seq2seq": {"AccumulateGrad": 1, "EmbeddingBackward0": 1},
}
"""By model, the nodes that only the reference has, by class: it lets frozen parameters require a gradient, which
changes the graph of the model. They count in the labels of every node behind them."""

OTHER_VALUES: Final[dict[tuple[str, str], str]] = {}
"""(model, the reference's label) of every activation that differs from the reference's, and why."""

FLOPS_BY_ANOTHER_RULE: Final[dict[str, str]] = {
    "an elementary function is one operation": "cos cumsum exp log pow __pow__ rsqrt sin sqrt tanh",
    "the operations of its definition are counted": "alpha_dropout avg_pool2d batch_norm cdist cosine_similarity "
    "cross_entropy elu gelu group_norm index_add_ index_reduce_ interpolate layer_norm leaky_relu log_softmax "
    "max_pool2d scaled_dot_product_attention scatter_add_ softmax softplus clamp aminmax",
    "n elements are joined by n - 1 operations": "all any argmax max min sum topk",
    "in evaluation nothing is done": "dropout identity pad",
    "the reference has none": "_grouped_mm _weight_norm conv1d diff fft histc irfft lstm randn_like rfft",
    "the reference leaves out a bias where the weight is computed": "linear",
}
"""Functions whose forward FLOPs differ from the reference's, by the reason, each told in ``docs/differences.md``."""

pytestmark = pytest.mark.slow


def load_compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("zoo_compare", ZOO / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compare = load_compare()


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What our tracing saw of every model."""
    out = tmp_path_factory.mktemp("zoo")
    subprocess.run(
        [sys.executable, str(ZOO / "dump.py"), "--out", str(out), "--jobs", "2"],
        env=surroundings(),
        check=True,
    )
    return {name: json.loads((out / f"{name}.json").read_text()) for name in NAMES}


@pytest.fixture(scope="module")
def results(dumps: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """``compare.Result`` per model: ``score`` holds (agreeing, compared) per figure, ``diffs`` the rest."""
    reference = {name: json.loads((ZOO / "peer" / f"{name}.json").read_text()) for name in NAMES}
    return {name: compare.compare_model(name, reference[name], dumps[name], RTOL) for name in NAMES}


def test_the_reference_covers_the_zoo() -> None:
    assert len(NAMES) == 46


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_traced_and_its_outputs_differentiated(dumps: dict[str, dict[str, Any]], name: str) -> None:
    assert "error" not in dumps[name], dumps[name]["error"]
    assert "error" not in dumps[name]["backward"], dumps[name]["backward"]["error"]
    assert dumps[name]["ops"]


@pytest.mark.parametrize("name", NAMES)
def test_tracing_leaves_outputs_buffers_and_gradients_as_they_are(results: dict[str, Any], name: str) -> None:
    agreeing, compared = results[name].score["plain"]
    assert results[name].diffs["plain"] == []
    assert agreeing == compared > 0


@pytest.mark.parametrize("name", NAMES)
def test_saved_activations_are_the_reference_s_but_for_those_explained(results: dict[str, Any], name: str) -> None:
    differing = {text.split(": ", 1)[0] for text in results[name].diffs["activations"]}
    assert differing == {label for model, label in OTHER_VALUES if model == name}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_pairs_are_the_reference_s_but_for_those_explained(results: dict[str, Any], name: str) -> None:
    for figure, explained in (("grads", OTHER_GRADIENTS), ("pairing", OTHER_PAIRS)):
        differing = {text.split(": ", 1)[0] for text in results[name].diffs[figure]}
        assert differing == {label for model, label in explained if model == name}, figure


def nodes(name: str, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Autograd nodes of a dump, without those that only exist because a saved output was cloned."""
    made: list[dict[str, Any]] = compare.Side(compare.without_idle_writes(record)).nodes
    return made


@pytest.mark.parametrize("name", NAMES)
def test_labels_of_nodes_are_the_reference_s_once_its_own_nodes_are_left_out(
    dumps: dict[str, dict[str, Any]], name: str
) -> None:
    theirs, ours = nodes(name, json.loads((ZOO / "peer" / f"{name}.json").read_text())), nodes(name, dumps[name])
    pairs = compare.align([(node["class"],) for node in theirs], [(node["class"],) for node in ours])
    shared = {theirs_at for theirs_at, _ in pairs}
    alone = [node for at, node in enumerate(theirs) if at not in shared]
    assert Counter(node["class"] for node in alone) == ONLY_THEIRS.get(name, {})
    if theirs:
        assert len(pairs) == len(ours)
    counts: Counter[str] = Counter()
    for total, (theirs_at, ours_at) in enumerate(pairs, 1):
        kind = theirs[theirs_at]["type"]
        counts[kind] += 1
        assert ours[ours_at]["label"] == f"{kind}_back_{counts[kind]}_{total}"
        assert alone or ours[ours_at]["label"] == theirs[theirs_at]["label"]


@pytest.mark.parametrize("name", NAMES)
def test_a_paired_node_is_where_its_op_is_and_where_the_reference_s_is_it_agrees(
    dumps: dict[str, dict[str, Any]], name: str
) -> None:
    """The reference tells the innermost module alone, and of many a paired node another than that of its op."""
    records = (json.loads((ZOO / "peer" / f"{name}.json").read_text()), dumps[name])
    theirs, ours = (placed(nodes(name, record), record) for record in records)
    assert all(own == of_op for _, own, of_op in ours)
    right = {(kind, own) for kind, own, of_op in theirs if own == of_op}
    missing = right - {(kind, own) for kind, own, _ in ours}
    assert missing == {(kind, module) for model, kind, module in ONLY_PLACED_THERE if model == name}


def placed(found: list[dict[str, Any]], record: dict[str, Any]) -> list[tuple[str, str | None, str | None]]:
    """Class, innermost module, and innermost module of the op, of each node that is paired with an op."""
    modules = {op["label"]: inner(op.get("modules")) for op in record["ops"]}
    return [
        (node["class"], inner(node.get("modules")), modules[node["op"]]) for node in found if node.get("op") in modules
    ]


def inner(modules: list[str] | None) -> str | None:
    return modules[-1].split(":")[0] if modules else None


def test_flops_differ_only_where_another_rule_counts_them(dumps: dict[str, dict[str, Any]]) -> None:
    differing: set[str] = set()
    compared = 0
    for name in NAMES:
        reference = json.loads((ZOO / "peer" / f"{name}.json").read_text()).get("ops", [])
        if len(reference) != len(dumps[name]["ops"]):
            continue
        for theirs, ours in zip(reference, dumps[name]["ops"], strict=True):
            if not theirs.get("role") and theirs.get("func") == ours.get("func"):
                compared += 1
                if theirs.get("flops") != ours.get("flops"):
                    differing.add(theirs["func"])
    assert compared > 3000
    assert differing == {func for funcs in FLOPS_BY_ANOTHER_RULE.values() for func in funcs.split()}


@pytest.mark.parametrize("figure", FLOORS)
def test_agreement_over_all_models_does_not_fall(results: dict[str, Any], figure: str) -> None:
    scores = [result.score[figure] for result in results.values() if figure in result.score]
    agreement = 100 * sum(agreeing for agreeing, _ in scores) / sum(compared for _, compared in scores)
    assert agreement >= FLOORS[figure]
