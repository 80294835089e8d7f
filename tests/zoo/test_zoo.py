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
}
"""Least agreement over all models, in per cent."""

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
    """What our tracing saw of every model, gradients left out."""
    out = tmp_path_factory.mktemp("zoo")
    subprocess.run(
        [sys.executable, str(ZOO / "dump.py"), "--forward", "--out", str(out), "--jobs", "2"],
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
