"""Records from events: pure folds, columnar tables, selectors. Runs no model and knows no torch.

A ``Projector`` folds one stream and gives its ``CaptureTables``; ``columns.py`` lists what stands in them. It gives
the ``Moment`` after any number of events, too.
"""

from __future__ import annotations

from projections.build import CaptureTables, Moment, Projector
from projections.columnar.tables import Table
from projections.columns import COLUMNS
from projections.folds.fold import Fold, Source
from projections.promises import invariants
from projections.selecting.selector import Selector
from projections.stored.encoding import fingerprint

__all__ = [
    "COLUMNS",
    "CaptureTables",
    "Fold",
    "Moment",
    "Projector",
    "Selector",
    "Source",
    "Table",
    "fingerprint",
    "invariants",
]
