"""A trace as a table of text.

Not   what is in the table: ``torchlens.reading.summary``.
"""

from __future__ import annotations

from typing_extensions import Unpack

from torchlens.reading.facade.forward import ForwardFacts
from torchlens.reading.summary import Summary, summary
from torchlens.reading.summary_options import USUAL, SummaryAsked, SummaryLevel, options_of
from torchlens.signatures import takes

__all__ = ["SummaryVerb"]


class SummaryVerb(ForwardFacts):
    """Summing it up."""

    @takes(SummaryAsked, USUAL)
    def summary(self, level: SummaryLevel = "auto", **options: Unpack[SummaryAsked]) -> Summary:
        """The modules, or the ops, with shapes, parameters and work, and totals: a text with rows.

        Args:
            level: What a row is: ``"module"``, a module of the model; ``"op"``, a call of torch; ``"auto"``, modules
                where the model called any.
            view: Which columns: ``"overview"`` or, for work alone, ``"compute"``.
            depth: Deepest level of modules to show; None or ``"auto"`` shows as many as fit in ``max_rows``, ``"all"``
                all.
            columns: Names of columns, in order; or changes to those of the view, ``"+macs"`` or ``"-time"``.
            filter: A regular expression, looked for in names, or a function of a row: only what it finds is shown.
            buffers: ``"summary"``, a line below the table; ``"hide"``; ``"show"``, rows at level ``op``.
            fold_repeats: Show modules that stand next to each other and are alike, or the passes of a layer, as one
                row; ``"auto"`` where not all would fit.
            max_rows: Most rows; None for all.
            flop_convention: ``"fma2"``, a multiply-accumulate is two FLOPs; ``"fma1"``, it is one.
            units: ``"auto"``, ``"raw"`` for plain numbers, or ``"K"``, ``"M"``, ``"G"``.
            style: ``"ascii"`` for characters of ASCII alone, ``"unicode"`` for lines that are drawn.

        Raises:
            ConfigurationError: ``summary_level_invalid``, ``summary_option_invalid``, ``summary_option_conflict``,
                ``summary_one_call_only``, ``fold_repeats_invalid``, ``flop_convention_unavailable``.
        """
        checked = options_of({"level": level, **options})
        failure = self.failure
        said = None if failure is None else failure.said
        return summary(self.tables, checked, where=said, is_disarmed=self.is_disarmed)
