"""A trace as a page of HTML, and as what a notebook shows.

Not   what is on it: this file alone of reading knows ``torchlens.page``.
"""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Literal

from torchlens.reading.view import View

__all__ = ["PageVerbs"]


class PageVerbs(View):
    """Showing it in a browser."""

    def to_html(
        self, path: str | os.PathLike[str], *, statistics: Literal["kept"] | bool = True, overwrite: bool = False
    ) -> Path:
        """Write one page that shows the capture in a browser: its graph, and a time scrubber over its events.

        The file needs no server and no network. It holds no tensor: statistics and small histograms, lines of source
        around each call, and what the records say.

        Args:
            path: Of the file.
            statistics: True for statistics and histograms of the activations and gradients that were kept, as far as
                a page looks at them; ``"kept"`` for those that ``tl.stats_only()`` kept, which reads no payload; False
                for none.
            overwrite: Replace a file that is there.

        Returns:
            The absolute path.

        Raises:
            ConfigurationError: ``page_path_exists``, ``page_not_written``, ``page_option_invalid``.
            CompatibilityError: ``page_too_large``, for a capture beyond what a browser opens.
        """
        from torchlens.page.writing import write_page  # for cost

        return write_page(self, path, statistics=statistics, overwrite=overwrite)

    def _repr_html_(self) -> str:
        if self.projector is None:
            return f"<pre>{html.escape(repr(self))}</pre>"
        from torchlens.page.notebook import notebook_html  # for cost

        return notebook_html(self)
