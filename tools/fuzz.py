"""Read journals whose events were changed at random: ``python tools/fuzz.py --seconds 300``.

Each round takes a sound capture, changes one to three things in it, stores it with right checksums, and reads it in
every way there is. Whatever comes of it but an answer or a coded error, or takes too long, is told with the seed that
brings it about again: ``--seed N --rounds 1``. The mutators and readers are those of the tests (tests/hostile.py).

With ``--artifacts`` it is an artifact, its events or its records, with right digests. It is loaded, run, drawn, written
in every form, and saved again (tests/artifacts/forging.py).
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.artifacts import forging
from tests.hostile import mutated, read_journal, read_records, sound_streams, write

SLOW = 20
"""Seconds after which a round has taken too long."""


def one(seed: int, streams: list, folder: Path) -> set[str]:
    """One round: the codes it came to."""
    draw = random.Random(seed)
    rows, payloads = draw.choice(streams)
    for _ in range(draw.choice((1, 1, 1, 4))):
        rows = mutated(rows, draw)
    path = write(folder / str(seed), rows, payloads)
    found = read_journal(path).codes | read_records(path, fields=draw.random() < 0.3).codes
    shutil.rmtree(path)
    return found


def one_artifact(seed: int, bases: list, folder: Path) -> set[str]:
    """One round with an artifact: the codes it came to."""
    draw = random.Random(seed)
    base, rows = draw.choice(bases)
    place = folder / str(seed)
    path = forging.tampered(base, place / "a.tlspec", rows, draw)
    if path is None:
        return set()
    found = forging.read_artifact(path, lazy=draw.random() < 0.5, fields=draw.random() < 0.3)
    shutil.rmtree(place)
    return found.codes


def main() -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    asked.add_argument("--seconds", type=float, default=60, help="how long to go on (60)")
    asked.add_argument("--rounds", type=int, default=sys.maxsize, help="at most as many rounds")
    asked.add_argument("--artifacts", action="store_true", help="change artifacts instead of journals")
    asked.add_argument("--seed", type=int, help="number of the first round; from the clock by default")
    chosen = asked.parse_args()
    first = int(time.time()) << 16 if chosen.seed is None else chosen.seed
    codes: collections.Counter[str] = collections.Counter()
    end = time.monotonic() + chosen.seconds
    failures = rounds = 0
    with tempfile.TemporaryDirectory() as folder:
        if chosen.artifacts:
            streams = [(base, forging.rows_of(base)) for base in forging.bases(Path(folder))]
            round_of = one_artifact
        else:
            streams, round_of = sound_streams(), one
        for seed in range(first, first + min(chosen.rounds, 1 << 40)):
            begun = time.monotonic()
            if begun >= end:
                break
            rounds += 1
            try:
                codes.update(round_of(seed, streams, Path(folder)))
            except Exception:  # noqa: BLE001 - what is sought
                failures += 1
                print(f"seed {seed}:\n{traceback.format_exc()}", flush=True)
            if time.monotonic() - begun > SLOW:
                failures += 1
                print(f"seed {seed}: {time.monotonic() - begun:.0f} seconds", flush=True)
    print(f"{rounds} rounds from seed {first}, {failures} failed")
    for code, count in codes.most_common():
        print(f"{count:>8}  {code}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
