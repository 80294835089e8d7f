"""Validating: a capture held against the model, against the calls it recorded, and against itself.

``validating`` runs the model and asks; ``checking`` makes one recorded call again; ``findings`` is what was found.
"""

from torchlens.validation.findings import EXCUSES, FAILURES, SKIPS, Check, ValidationReport
from torchlens.validation.validating import last_validation_failure, report, validate

__all__ = ["EXCUSES", "FAILURES", "SKIPS", "Check", "ValidationReport", "last_validation_failure", "report", "validate"]
