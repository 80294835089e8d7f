"""Running the recorded calls again, with other inputs or one by one.

Not   how they are run: ``torchlens.above`` says who does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchlens.above import Running
from torchlens.above import running as running_above
from torchlens.reading.facade.accessors import Collections
from torchlens.reading.records import Op
from torchlens.reading.view import no_torch

if TYPE_CHECKING:
    from torchlens.reading.run_result import Draws, Readiness, RunResult

__all__ = ["RunVerbs"]


class RunVerbs(Collections):
    """Running what was recorded."""

    def run(
        self,
        model: Any = None,
        inputs: Any = None,
        input_kwargs: Mapping[str, Any] | None = None,
        *,
        seed: int | None = None,
        draws: Draws = "fresh",
        strict: bool = False,
        fast: bool = False,
    ) -> RunResult:
        """Run the recorded calls with other inputs, without the model's code.

        The capture must have been made with ``CaptureOptions(replayable=True)``. The model's own parameters and buffers
        are used where it lives, else those of ``load_state_dict``, of the artifact, or random ones; none is written.

        Args:
            model: Refused until edits are available.
            inputs: The positional arguments, as for ``tl.trace``; what the capture was given, if it was kept, by
                default. Names, nesting, plain values, shapes, dtypes and devices must be those of the capture.
            input_kwargs: The keyword arguments.
            seed: Seed every generator with this for the run, and put its state back after it.
            draws: ``"fresh"``: calls that draw random numbers draw them from the generators as they stand.
                ``"recorded"``: they draw those of the capture.
            strict: Refuse, and do not only report, where the model would not have gone the recorded way.
            fast: Leave out the result's trace.

        Returns:
            The output, the run as a trace, and a report that says whether the model's code would have gone the same
            way: ``result.report.path_faithfulness``. Where it would not, the result is that of the recorded path, and
            a ``TorchLensWarning`` says so.

        Raises:
            RunCapabilityUnavailableError: ``run_capability_unavailable``, for a capture that was not made for it;
                ``sparse_preflight_failed``, where something in it cannot be run, with ``fields["diagnostics"]``;
                ``run_source_model_collected``, where the model is gone.
            PathDivergenceError: ``input_tree_mismatch``, ``input_shape_mismatch``, ``input_dtype_mismatch``,
                ``input_device_mismatch``; ``call_structure_mismatch`` and ``run_call_raised``, where the recorded path
                does not lead on; with ``strict``, ``scalar_bool_divergence``, ``taken_value_divergence`` and
                ``call_outcome_divergence``.
            StateBindingError: ``state_missing_key``.
            ConfigurationError: ``run_input_missing``, ``option_value_invalid``, ``option_not_available``.

        Example:
            >>> import torch, torchlens as tl
            >>> model = torch.nn.Linear(2, 3)
            >>> trace = tl.trace(model, torch.ones(1, 2), capture=tl.CaptureOptions(replayable=True))
            >>> x = torch.randn(1, 2)
            >>> torch.equal(trace.run(inputs=x).output, model(x))
            True
        """
        self.require_open()
        return running().run(self, model, inputs, input_kwargs, seed=seed, draws=draws, strict=strict, fast=fast)

    @property
    def readiness(self) -> Readiness:
        """Whether the capture can be run, where its parameters and buffers would come from, and what is in the way."""
        self.require_open()
        return running().readiness(self)

    def load_state_dict(self, state_dict: Mapping[str, Any] | None) -> None:
        """Give ``run`` its parameters and buffers, as ``model.state_dict()`` gives them; None takes them back.

        Tensors are copied. Parameters, as ``state_dict(keep_vars=True)`` gives them, and other tensors that require
        gradients are used as they are, so that those of a result reach them, and are not written.

        Raises:
            StateBindingError: ``state_missing_key``, ``state_unexpected_key``, ``state_shape_mismatch``,
                ``state_dtype_mismatch``, ``state_dict_type_invalid``.
        """
        self.require_open()
        running().load_state_dict(self, state_dict)

    def make_again(self, site: Any, *, allowed_custom_callable_modules: Sequence[str] = ()) -> tuple[Any, ...]:
        """Make the call of one op again, on what it was given, and give the tensors that it returns.

        What it was given is taken from saved arguments (``save_arg_values=True``) or from the values that its arguments
        were; random numbers are those that it drew.

        Args:
            site: An op, its label, its position, or a selector of one.
            allowed_custom_callable_modules: Modules whose ``autograd.Function``s may be imported and called, and
                namespaces of custom operators (``"torch.ops.mine"``). By default only torch's own functions are.

        Raises:
            LookupRefused: ``made_by_no_call``, and what ``trace.ops[...]`` raises.
            ReplayRefused: ``replay_value_not_kept`` and its siblings, where it was not kept what the call was given;
                ``custom_callable_untrusted``, ``custom_callable_not_found``, ``custom_callable_unsupported``.
            ConfigurationError: ``option_value_invalid``.
        """
        self.require_open()
        op = site if isinstance(site, Op) else self.ops[site]
        return running().make_again(self, op, allowed_custom_callable_modules)


def running() -> Running:
    """What runs recorded calls.

    Raises:
        PayloadUnavailableError: ``torch_not_installed``.
    """
    try:
        return running_above()
    except ModuleNotFoundError as exc:
        raise no_torch(exc) from exc
