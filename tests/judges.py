"""Judges that nobody here wrote: other people's programs, each in an environment of its own, as processes of a test."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from command import PATIENCE


def environment_with(home: Path, *packages: str) -> Path:
    """A new virtual environment with these packages; gives the folder of its programs."""
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", *packages], check=True)
    return home / "bin"


def free_port() -> int:
    """A port of loopback where nobody listens just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextmanager
def serving(
    command: Sequence[str | Path],
    port: int,
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    within: float = PATIENCE,
) -> Iterator[None]:
    """The command as long as the block lasts, from when it listens; `within` seconds it must. log: what it says."""
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, env=env, cwd=log.parent
        )
    try:
        deadline = time.monotonic() + within
        while not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def finish(runs: Mapping[str, subprocess.Popen[str]], *, within: float) -> None:
    """Wait for `tidegate run`s under way; each must end with 0 in so many seconds. None is left behind."""
    try:
        for name, process in runs.items():
            _, said = process.communicate(timeout=within)
            assert process.returncode == 0, f"{name}: {said}"
    finally:
        for process in runs.values():
            process.kill()  # does nothing to one that has ended
            process.communicate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
