"""Helpers of the tests that start the real command: an upstream over HTTP, and runs against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ready import run_ready

from policies.contract import JSON

TIDEGATE = [sys.executable, "-m", "controller.start"]
QUICK = "steady?rate=500&burst=500&latency=0.02&words=3"
PATIENCE = 60.0  # s; only a hang is slower


def environment(**more: str) -> dict[str, str]:
    """Ours without what a developer may have set, and without a memory: no run begins where another test ended."""
    ours = {name: value for name, value in os.environ.items() if "TIDEGATE" not in name}
    return ours | {"TIDEGATE_REMEMBER": "no"} | more


@contextmanager
def upstream(profile: str = QUICK, *, port: int = 0) -> Iterator[str]:
    """`tidegate upstream PROFILE` on a port, 0 for a free one; gives its base URL."""
    command = [*TIDEGATE, "upstream", profile, "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stderr is not None
        yield process.stderr.readline().split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)


def statistics(base_url: str) -> dict[str, JSON]:
    """What the upstream saw."""
    with urllib.request.urlopen(base_url.removesuffix("/v1") + "/_sim/statistics") as answer:  # noqa: S310  ours
        seen: dict[str, JSON] = json.load(answer)
    return seen


def start(*arguments: str | Path, **more: object) -> subprocess.Popen[str]:
    """`tidegate run ...` with its output caught."""
    given: dict[str, object] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": environment(),
    }
    return subprocess.Popen([*TIDEGATE, "run", *map(str, arguments)], **(given | more))  # type: ignore[call-overload,no-any-return]


def run(*arguments: str | Path, text: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """`tidegate run ...` to its end, in a process that was imported before (`start` makes a new one). text: stdin."""
    if not any(name.startswith("PYTHON") for name in more):
        return run_ready(["run", *map(str, arguments)], environment(**more), text, PATIENCE)
    return subprocess.run(
        [*TIDEGATE, "run", *map(str, arguments)],
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(**more),
        check=False,
    )


def write_prompts(path: Path, count: int) -> Path:
    """`count` prompts with ids 0, 1, ...."""
    path.write_text("".join(json.dumps({"id": n, "prompt": f"prompt {n}"}) + "\n" for n in range(count)))
    return path


def results(path: Path) -> list[dict[str, JSON]]:
    """The result lines of a file; fails on one that is no JSON."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def ids(lines: Sequence[dict[str, JSON]]) -> list[JSON]:
    """Their ids, sorted."""
    return sorted((line["id"] for line in lines), key=str)


def at(value: JSON, *path: str | int) -> JSON:
    """What lies at `path` in a JSON value; fails where the path leads nowhere."""
    for step in path:
        if isinstance(step, str):
            assert isinstance(value, dict), f"no object at {step!r}: {value!r}"
            value = value[step]
        else:
            assert isinstance(value, list), f"no list at {step}: {value!r}"
            value = value[step]
    return value


def each(value: JSON, *path: str | int) -> list[JSON]:
    """What lies at `path` in each item of a list."""
    assert isinstance(value, list)
    return [at(item, *path) for item in value]
