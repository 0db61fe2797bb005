"""The console script's first step, before anything of ours or anybody's else is imported.

Are `controller`, `policies` and `simulations` really ours? The names are generic: another distribution may have put
its own files over ours, or a folder on the path may stand before them, and the imports of cli.py would fail with a
riddle. And are the three standard descriptors open? If not, the next file to be opened would become stdout.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

PACKAGES = ("controller", "policies", "simulations")
OURS = "tidegate"  # each package's DISTRIBUTION


def main() -> None:
    """The command `tidegate`."""
    occupy_standard_descriptors()
    try:
        fault = shadowed()
        if fault is not None:
            sys.stderr.write(f"tidegate: error: {fault}\n")
            sys.exit(2)
        # Not at the top, on purpose: it must not be tried before the look.
        importlib.import_module("controller.cli").main()
    except KeyboardInterrupt:
        sys.exit(130)


def occupy_standard_descriptors() -> None:
    """Put /dev/null on each of 0, 1 and 2 that is closed; Python has said None for its stream by now."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def shadowed() -> str | None:
    """What stands before ours and what to do about it; None if all is well."""
    home = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        package = importlib.import_module(name)
        places = [Path(place).resolve() for place in package.__path__]
        if getattr(package, "DISTRIBUTION", None) != OURS or places != [home / name]:
            found = ", ".join(map(str, places))
            return (
                f"the package {name} in {found} is not Tidegate's; install Tidegate into an environment of its own, "
                "with `uv tool install` or pipx, and run it where no folder of that name is on PYTHONPATH"
            )
    return None


if __name__ == "__main__":
    main()
