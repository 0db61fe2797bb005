"""The console script's first step: are `controller`, `policies` and `simulations` really ours?

The names are generic. Another distribution may have put its own files over ours, or a folder on the path may stand
before them; then the imports of cli.py would fail with a riddle. So they are looked at before it is imported.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

PACKAGES = ("controller", "policies", "simulations")
OURS = "tidegate"  # each package's DISTRIBUTION


def main() -> None:
    """The command `tidegate`."""
    fault = shadowed()
    if fault is not None:
        sys.stderr.write(f"tidegate: error: {fault}\n")
        sys.exit(2)
    # Not at the top, on purpose: it must not be tried before the look.
    importlib.import_module("controller.cli").main()


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
