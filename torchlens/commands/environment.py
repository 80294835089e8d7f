"""``doctor``: what this environment has and lacks."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from torchlens import report
from torchlens.commands.printing import write_json

if TYPE_CHECKING:
    from torchlens.commands.parsing import Subparsers


def add(groups: Subparsers) -> None:
    text = "what this environment has and lacks"
    made = groups.add_parser("doctor", help=text, description=text[0].upper() + text[1:] + ".")
    made.add_argument("path", metavar="PATH", nargs="?", help="a directory that journals are to go to")
    made.add_argument("--json", action="store_true", help="for programs")
    made.set_defaults(answer=doctor)


def doctor(asked: argparse.Namespace) -> int:
    """Exits with 1 where something is missing that a capture needs."""
    found = report.doctor(asked.path)
    if asked.json:
        write_json([probe._asdict() for probe in found.probes])
    else:
        sys.stdout.write(f"{found}\n")
    return int(not found.is_healthy)
