"""Which capture a trace is: names, versions, what was asked for, and digests by which captures are told apart."""

from __future__ import annotations

from typing import Any

from projections import fingerprint
from torchlens import collector
from torchlens.reading.facade.accessors import Collections
from torchlens.reading.fields import Field
from torchlens.reading.values import python_values
from torchlens.reading.view import no_torch

__all__ = ["IdentityFacts"]


class IdentityFacts(Collections):
    """Which capture it is."""

    trace_label = Field[str]("Name given to it, else the class of its model.")
    name = Field[str | None]("Name given to it; None without one.")
    tags = Field[tuple[str, ...]]("Words given to find it by.")
    model_class_name = Field[str]("Class of the model.")
    model_class_qualname = Field[str]("Import path of that class.")
    backend = Field[str]("The engine that ran the model.")
    options = Field[dict[str, Any]]("The capture options that differed from their defaults.", python_values)
    environment = Field[dict[str, str]]("Versions and platform of the process that captured.", dict)
    written_by = Field[str]("Version of this package that captured.")
    save_request = Field[str]("What was asked to be kept, as text.")
    stop_after = Field[str | None]("Where the forward was to stop, as text; None for its end.")
    random_seed = Field[int | None]("The seed that was asked for; None where none was.")
    graph_shape_hash = Field[str]("Digest of the structure: types, labels, slots and edges.")
    input_signature_hash = Field[str]("Digest of where the inputs sit, their shapes and dtypes.")
    capture_mode = Field[str](
        "How the forward was watched: ``wrapped``, by wrappers on torch's functions alone, or ``witnessed``, by the"
        " dispatcher below them too."
    )

    @property
    def journal_path(self) -> str | None:
        """Directory of its journal; None for one in memory."""
        return self.journal.path

    @property
    def param_hash_quick(self) -> str:
        """Digest of the parameters as the capture had them: equal for equal addresses, shapes, dtypes and elements.

        It is worked out at each read, of all elements: of the live parameters, if nothing has written to them since, or
        of what ``save_arg_values`` kept.

        Raises:
            PayloadUnavailableError: ``parameter_not_live``, ``parameter_changed``, where there is neither.
        """
        self.require_open()
        try:
            from torchlens.reading.digests import digest_of  # for cost: a trace is read without torch
        except ModuleNotFoundError as exc:
            raise no_torch(exc) from exc
        return digest_of((param.address, param.as_captured("param_hash_quick")) for param in self.params)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all records in canonical form: equal for equal records, wherever they were folded."""
        tables = self.tables
        with collector.paused():  # every cell is looked at, and none of what is made on the way belongs to a cycle
            return fingerprint(tables)

    def fingerprint_at(self, level: str = "portable") -> str:
        """The fingerprint that a trace has which is saved at a level and loaded again.

        An artifact leaves out the operators and times of single firings, and what its level does not keep; so, once
        there was a backward pass, its fingerprint is not that of the capture. With this, one is held against the other.

        Args:
            level: As for ``save``.

        Raises:
            ConfigurationError: ``artifact_save_level_invalid``; ``gradients_inseparable``, as ``save`` does.

        Example:
            >>> import torch, torchlens as tl
            >>> trace = tl.trace(torch.nn.Linear(2, 3), torch.ones(1, 2))
            >>> trace.backward(trace.output.sum())
            >>> loaded = tl.load(trace.save("held_against.tlspec"))
            >>> loaded.fingerprint == trace.fingerprint, loaded.fingerprint == trace.fingerprint_at("portable")
            (False, True)
        """
        from torchlens.tlspec.saving import fingerprint_at  # for cost

        return fingerprint_at(self, level)
