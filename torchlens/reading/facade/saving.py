"""Saving a trace as an artifact.

Not   how it is written: ``torchlens.tlspec.saving``.
"""

from __future__ import annotations

import os
from pathlib import Path

from typing_extensions import Unpack

from torchlens.reading.view import View
from torchlens.signatures import takes
from torchlens.tlspec.asked import USUAL, SaveAsked

__all__ = ["SaveVerb"]


class SaveVerb(View):
    """Saving it."""

    @takes(SaveAsked, USUAL)
    def save(self, path: str | os.PathLike[str], **options: Unpack[SaveAsked]) -> Path:
        """Save it as an artifact: a directory that ``tl.load(path)`` reads in any process, without the model's code.

        Args:
            path: Where nothing is yet, such as ``"run.tlspec"``.
            level: What is kept beside the records: ``"portable"`` activations and gradients; ``"audit"`` no tensor;
                ``"executable_with_callables"`` also what calls were given and the states of random generators, as far
                as the capture kept them; ``"runnable"`` what it takes to run the forward again.
            include_outs: Keep activations. None here and below is as the level has it.
            include_grads: Keep gradients.
            include_saved_args: Keep what calls were given (``save_arg_values``).
            include_rng_states: Keep the states of random generators.
            include_weights: Keep the parameters and buffers of the model, as the capture had them.
            include_activations: At level ``"runnable"``, keep activations beside what it needs.
            include_source: Keep the text of the model's functions, which source lines and names of variables are read
                from.
            overwrite: Replace an artifact that stands there.
            strict: Refuse where a payload that is to be kept has no bytes; else leave it out with a warning.

        Returns:
            Its absolute path.

        Raises:
            ConfigurationError: ``artifact_save_level_invalid``, ``save_payload_level_conflict``,
                ``option_value_invalid``.
            ArtifactError: ``bundle_save_failed``, when something stands there, or the disk refuses.
            PayloadUnavailableError: ``payload_without_bytes``.
            JournalError: ``payload_lost``, ``payload_damaged``, of a trace that was read from a journal.

        Example:
            >>> import torch, torchlens as tl
            >>> trace = tl.trace(torch.nn.Linear(2, 3), torch.ones(1, 2))
            >>> path = trace.save("linear.tlspec")
            >>> tl.load(path).ops.labels
            ('input_1', 'linear_1_1', 'output_1')
        """
        from torchlens.tlspec.saving import write_artifact  # for cost

        return write_artifact(self, path, **options)
