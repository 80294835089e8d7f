"""The command line, run in the process of the test."""

from __future__ import annotations

import pytest

from torchlens.cli import main


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command prints that ends well and has nothing to complain of."""
    assert main([str(argument) for argument in arguments]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out
