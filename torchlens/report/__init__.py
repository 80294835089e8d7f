"""Reports: what there is, in a table that a terminal shows and pandas takes.

One file a report. ``environment`` needs no torch.
"""

from __future__ import annotations

from torchlens.report.backward import BackwardStatus, backward_status
from torchlens.report.environment import Capability, Doctor, Probe, doctor
from torchlens.report.tree import CostTree, CostTreeRow, cost_tree

__all__ = [
    "BackwardStatus",
    "Capability",
    "CostTree",
    "CostTreeRow",
    "Doctor",
    "Probe",
    "backward_status",
    "cost_tree",
    "doctor",
]
