"""Memory and time of a resumed run whose prompts are all done: from 100,000 to 1,000,000 lines.

    python benchmarks/resume.py [LINES ...]

Each size is a process of its own that runs the whole command: it reads the results, then every input line, finds each
answered, and recounts. Memory is the growth of the peak resident set from the first size to each of the others, divided
by the lines more. Goals: at most 120 bytes a done line; a million lines in under 20 s on a machine with nothing else to
do, whose speed is told by the first line: a million small JSON objects parsed take about 1 s there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from controller.identity import Identities, understood
from controller.lines import parse_line
from controller.outcome import Answer, Usage
from controller.records import Prompt, Result, Timing, dump_result

SIZES = (100_000, 300_000, 1_000_000)
TEXT = "An answer of some length, as they are: a few sentences, no more. " * 4
KINDS = ("id", "no id")


def write_files(folder: Path, count: int, kind: str) -> None:
    """Prompts and the results that a finished run would have left."""
    identities, made = Identities(), None
    with (folder / "p.jsonl").open("wb") as prompts, (folder / "r.jsonl").open("wb") as results:
        for number in range(count):
            value = {"prompt": f"What is there to say about the number {number}?"}
            line = json.dumps(value | ({"id": f"mail-{number:07}"} if kind == "id" else {})).encode()
            parsed = parse_line(line)
            assert parsed is not None
            key = identities.identify(parsed, "p.jsonl", 1)
            assert isinstance(key, bytes)
            prompt = understood(parsed, key, "p.jsonl", 1)
            assert isinstance(prompt, Prompt)
            made = made or (prompt, dump_result(_result(prompt)))  # all others differ from it in key and id only
            result = made[1].replace(made[0].key.encode(), prompt.key.encode())
            prompts.write(line + b"\n")
            results.write(result.replace(b"mail-0000000", f"mail-{number:07}".encode()))


def _result(prompt: Prompt) -> Result:
    usage = Usage(input_tokens=12, output_tokens=60)
    answer = Answer(text=TEXT, finish_reason="stop", model="m", usage=usage, body={})
    timing = Timing(queued=0.1, first_token=0.3, total=1.2)
    return Result(prompt=prompt, answer=answer, attempts=1, timing=timing, usage=usage)


def resume(folder: Path) -> tuple[float, float, int]:
    """(wall seconds, CPU seconds, peak bytes) of `tidegate run` over them."""
    command = [sys.executable, "-m", "controller.start", "run", str(folder / "p.jsonl"), "--base-url", "sim:steady"]
    began = time.monotonic()
    process = subprocess.Popen([*command, "-o", str(folder / "r.jsonl")], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, said
    assert "missing 0, double 0" in said, said
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def speed() -> float:
    """CPU seconds to parse a million lines of JSON with nothing else."""
    line, began = '{"id":"mail-0000000","prompt":"What is there to say about the number 0?"}', time.process_time()
    for _ in range(100_000):
        json.loads(line)
    return 10 * (time.process_time() - began)


def main() -> None:
    """One line for each kind and size; called by itself, only the files of one."""
    if sys.argv[-1] in KINDS:
        write_files(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
        return
    print(f"a million lines parsed by json alone: {speed():.1f} s of CPU")
    sizes = tuple(map(int, sys.argv[1:])) or SIZES
    for kind in KINDS:
        first = (0, 0)
        for count in sizes:
            with tempfile.TemporaryDirectory() as name:
                # In a process of its own: a child's peak begins with what its parent holds when it is started.
                subprocess.run([sys.executable, __file__, name, str(count), kind], check=True)
                wall, cpu, peak = resume(Path(name))
            each = (peak - first[1]) / (count - first[0])
            first = first if first[0] else (count, peak)
            print(f"{kind:>6}  {count:>9,} lines  {wall:6.1f} s  {cpu:6.1f} s CPU  {peak / 1e6:6.1f} MB", end="")
            print("" if first[0] == count else f"  {each:5.1f} bytes a line", flush=True)


if __name__ == "__main__":
    main()
