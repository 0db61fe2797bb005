"""A process that has imported the command and waits: it forks for each run, which is spared half a second of imports.

`run` of tests/command.py asks it. A request is one message on a Unix socket: arguments, environment and folder as JSON,
and with it the three standard descriptors. The answers are the fork's process id, and its exit code when it has ended.
It has no threads, so that nothing is held by one that a fork does not have.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import trio

from controller import start

LONGEST = 1_000_000  # bytes of a request
ANSWER = 16  # bytes
PATIENCE = 60.0  # s; only a hang is slower


@cache
def _ready() -> socket.socket:
    """Our end of its socket; it is made when it is first needed."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        command = [sys.executable, str(Path(__file__)), str(there.fileno())]
        process = subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
    atexit.register(process.wait, PATIENCE)
    atexit.register(here.close)  # which goes first, and ends it
    return here


def run_ready(
    arguments: list[str], environment: dict[str, str], text: str | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with its output caught; text: stdin, None for nothing."""
    asked = json.dumps({"arguments": arguments, "environment": environment, "folder": str(Path.cwd())}).encode()
    pipes = [os.pipe() for _ in range(3)]
    theirs, ours = [pipes[0][0], pipes[1][1], pipes[2][1]], [pipes[0][1], pipes[1][0], pipes[2][0]]
    ready = _ready()
    socket.send_fds(ready, [asked], theirs)
    for number in theirs:
        os.close(number)
    process = int(ready.recv(ANSWER))
    said = ["", ""]
    readers = [threading.Thread(target=_read, args=(ours[1 + which], said, which)) for which in range(2)]
    writer = threading.Thread(target=_write, args=(ours[0], text or ""))
    for thread in (*readers, writer):
        thread.start()
    ready.settimeout(timeout)
    try:
        code = int(ready.recv(ANSWER))
    except TimeoutError:
        os.kill(process, 9)
        ready.recv(ANSWER)
        raise
    finally:
        for thread in (*readers, writer):
            thread.join()
    return subprocess.CompletedProcess(arguments, code, *said)


def _read(number: int, said: list[str], which: int) -> None:
    with open(number, encoding="utf-8") as pipe:
        said[which] = pipe.read()


def _write(number: int, text: str) -> None:
    try:
        with open(number, "w", encoding="utf-8") as pipe:
            pipe.write(text)
    except BrokenPipeError:
        pass  # as `subprocess` has it: who does not read need not


def _wait_for_requests(requests: socket.socket) -> None:
    while True:
        asked, descriptors, _, _ = socket.recv_fds(requests, LONGEST, 3)
        if not asked:
            return
        process = os.fork()
        if process == 0:
            requests.close()
            _become(json.loads(asked), descriptors)
        for number in descriptors:
            os.close(number)
        requests.send(b"%d" % process)
        requests.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def _become(asked: dict[str, object], descriptors: list[int]) -> None:
    """The command, to its end."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(str(asked["folder"]))
    os.environ.clear()
    os.environ.update(asked["environment"])  # type: ignore[call-overload]
    sys.argv = ["tidegate", *asked["arguments"]]  # type: ignore[misc]
    trio._core._run._r.seed()  # a fresh process would draw its own order of tasks
    start.main()
    raise AssertionError("the command ends its process")


if __name__ == "__main__":
    for name in ("controller.cli", "simulations.serving"):
        importlib.import_module(name)
    gc.freeze()  # what was imported is no garbage, and need not be copied to be looked at
    _wait_for_requests(socket.socket(fileno=int(sys.argv[1])))
