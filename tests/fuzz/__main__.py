"""Fuzz for some seconds, or run one file again.

python -m tests.fuzz --seconds 300
python -m tests.fuzz --file crash-client-12
"""

import argparse
import sys
import time
from pathlib import Path
from random import Random

from tests.fuzz.corpus import FOLDER
from tests.fuzz.mutate import mutate
from tests.fuzz.target import HALVES, run

STEPS = (1, 7, 100, 4096, 65_536)


def fuzz(half: str, seconds: float, seed: int) -> tuple[int, bytes | None, Exception | None]:
    """Run inputs for *seconds*; return how many, and the first that broke a promise with why."""
    random = Random(seed)
    known = [path.read_bytes() for path in sorted((FOLDER / half).iterdir())]
    deadline = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < deadline:
        data = mutate(random, known)
        # One byte at a time is slow, and says the same for most inputs.
        step = random.choice(STEPS if len(data) < 3000 else STEPS[1:])
        try:
            run(half, data, step)
        except Exception as error:
            return runs, data, error
        runs += 1
        if runs % 500 == 0 and len(data) < 20_000:  # deeper mutations of what was made before
            known.append(data)
            del known[60:]
    return runs, None, None


def main() -> int:
    """Parse the command line; exit 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    if options.file is not None:
        half = options.file.name.split("-")[1]
        for step in STEPS:
            run(half, options.file.read_bytes(), step)
        return 0
    status = 0
    for half in HALVES:
        runs, data, error = fuzz(half, options.seconds / len(HALVES), options.seed)
        print(f"{half}: {runs} inputs, seed {options.seed}")
        if data is not None:
            crash = Path(f"crash-{half}-{options.seed}")
            crash.write_bytes(data)
            print(f"{type(error).__name__}: {error}\nkept as {crash}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
