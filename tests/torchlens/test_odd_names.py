"""Names that a model may have and a file may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchlens as tl


class Halves(nn.Module):
    """Its names have halves of surrogate pairs, which UTF-8 does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("a\ud800", nn.Linear(2, 2))
        self.register_parameter("w\udfff", nn.Parameter(torch.ones(2)))
        self.register_buffer("b\ud800", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = getattr(self, "a\ud800")(x) * getattr(self, "w\udfff") + getattr(self, "b\ud800")
        return scaled


def test_names_with_half_a_surrogate_pair_are_spelled_out(tmp_path: Path) -> None:
    def hook(*arguments: Any) -> None: ...

    hook.__qualname__ = "hook\ud800"
    model = Halves()
    model.register_forward_hook(hook)
    Halves.__module__, module = "from\ud800", Halves.__module__
    try:
        trace = tl.trace(model, torch.ones(1, 2), save="a\\ud800", name="n\ud800", journal=tl.JournalOptions(tmp_path))
    finally:
        Halves.__module__ = module
    for one in (trace, tl.load(trace.save(tmp_path / "a.tlspec"))):
        assert [found.address for found in one.modules] == ["self", "a\\ud800"]
        assert [found.address for found in one.params] == ["w\\udfff", "a\\ud800.weight", "a\\ud800.bias"]
        assert [found.address for found in one.buffers] == ["b\\ud800"]
        assert one.modules[0].class_qualname == "from\\ud800.Halves"
        assert one.modules[0].forward_hooks == ["hook\\ud800"]
        assert one["a\\ud800"].out.shape == (1, 2)
        assert one.trace_label == "n\\ud800"
        assert "ud800" in str(one.summary())
        assert one.draw().source.encode()
    assert trace.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
