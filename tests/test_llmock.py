"""llmock (PyPI) as upstream and judge: it limits, breaks answers and errs in three dialects, and grades the client.

Its verdict (`llmock report`, GET /_llmock/verdict) finds retries before Retry-After, retry storms, truncated streams
that were accepted, damaged ones that were read on, and more. It answers with the prompt's own words, so that every text
is known beforehand: what is stored as ok is compared with what llmock would have sent whole.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import frozen
from command import at, each, results, start
from judges import environment_with, finish, free_port, serving

from policies.contract import JSON

pytestmark = [pytest.mark.slow, pytest.mark.judge(name="llmock")]

PROMPTS = 60
WORDS = "one two three four five six seven eight nine ten eleven twelve"
GREETING = "Hello! You said: "
PATHS = {"openai": "/v1", "anthropic": "/anthropic", "gemini": "/gemini"}
# The event that proves an answer complete, counted from 0; before it come 17 words and what the dialect adds to them.
PROOFS = {"openai": 18, "anthropic": 21, "gemini": 16}
STATUSES = (500, 502, 503, 504, 529, 408, 409, 429)
STALLED, PATIENT = 10.0, 4.0  # s; a stall, and how long our client bears one
EARLY = 5  # events; so much is still to come that even a busy machine notices a client that closes there
EVENT_MS = 30
CALM = 300  # requests/min; at the speed it could be, llmock would come late with its own events on a busy machine
NO_FAULT = "stream:stall@0"  # of no length


@frozen(kw_only=True)
class LLMock:
    """One that runs."""

    url: str

    def get(self, path: str) -> JSON:
        """What its control API says."""
        with urllib.request.urlopen(f"{self.url}/_llmock/{path}") as answer:  # noqa: S310  on loopback
            said: JSON = json.load(answer)
        return said

    def script(self, behaviors: list[JSON]) -> None:
        """Queue what is to go wrong; each request takes the first that fits it."""
        body = json.dumps({"behaviors": behaviors}).encode()
        with urllib.request.urlopen(f"{self.url}/_llmock/scenario", body) as answer:  # noqa: S310  on loopback
            assert json.load(answer)["queued"] == len(behaviors)

    def findings(self) -> list[JSON]:
        """What it holds against the client."""
        return each(at(self.get("verdict"), "findings"))

    def run_all(self, folder: Path, *more: str) -> dict[str, list[dict[str, JSON]]]:
        """`tidegate run` in all dialects at once; the results by dialect."""
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"id": n, "prompt": asked(n)}) + "\n" for n in range(PROMPTS)))
        common: list[str | Path] = [prompts, "--model", "m", "--max-tokens", "200", *more]
        runs = {
            dialect: start(*common, "--dialect", dialect, "--base-url", self.url + path, "-o", folder / dialect)
            for dialect, path in PATHS.items()
        }
        finish(runs, within=180.0)
        return {dialect: results(folder / dialect) for dialect in runs}


def asked(number: int) -> str:
    """The prompt of this number."""
    return f"prompt {number} {WORDS}"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `llmock`."""
    return environment_with(tmp_path_factory.mktemp("llmock") / "env", "llmock==0.2.2") / "llmock"


@contextmanager
def llmock(program: Path, folder: Path, *options: str) -> Iterator[LLMock]:
    """`llmock serve` on a free port."""
    port = free_port()
    command = [str(program), "serve", "--port", str(port), "--response-style", "echo", "--log-level", "warning"]
    with serving([*command, *options], port, folder / "llmock.log"):
        yield LLMock(url=f"http://127.0.0.1:{port}")


def check(judge: LLMock, answered: dict[str, list[dict[str, JSON]]]) -> None:
    """Every prompt has one result with the whole text, and llmock answered it once and saw each attempt we count."""
    requests = each(at(judge.get("requests"), "requests"))
    for dialect, lines in answered.items():
        assert sorted(int(str(line["id"])) for line in lines) == list(range(PROMPTS))
        for line in lines:
            assert (line["status"], line["text"]) == ("ok", GREETING + asked(int(str(line["id"]))))
        mine = [request for request in requests if at(request, "provider") == dialect]
        assert len(mine) == sum(int(str(line["attempts"])) for line in lines)
        # Not its word `completed`: it asks for the last byte, and after the proof nobody waits long for that.
        whole = [r for r in mine if at(r, "status") == 200 and at(r, "fault") in (None, NO_FAULT)]
        assert list(Counter(each([*whole], "fingerprint")).values()) == [1] * PROMPTS


@pytest.mark.parametrize(("policy", "per_minute"), [("recall", 120), ("aimd", 40)])
def test_within_a_quota_every_prompt_is_answered_once_and_the_verdict_is_clean(
    program: Path, tmp_path: Path, policy: str, per_minute: int
) -> None:
    with llmock(program, tmp_path, "--rpm", str(per_minute)) as upstream:
        answered = upstream.run_all(tmp_path, "--policy", policy)
        check(upstream, answered)
        assert upstream.findings() == []
        report = subprocess.run(
            [program, "report", "--strict", "--url", upstream.url], capture_output=True, check=False
        )
        assert report.returncode == 0
    if policy == "aimd":  # it reads no announced limits, so it met them: there are more prompts than the bucket holds
        assert all(any(line["throttled"] for line in lines) for lines in answered.values())


def faults(dialect: str) -> list[JSON]:
    """Cuts at every event before the proof, lost connections, damage, stalls, and errors instead of answers."""
    before_proof = range(PROOFS[dialect] + 1)
    places = [("truncate", after) for after in before_proof] + [("disconnect", after) for after in before_proof[::3]]
    places += [("malformed", after) for after in range(EARLY)] + [("stall", after) for after in (1, 4, 9)]
    script: list[JSON] = [{"type": "fail", "status": status, "match": {"provider": dialect}} for status in STATUSES]
    for kind, after in places:  # every other answer is whole: an upstream that breaks them all is an outage
        script += [_stream_fault(dialect, kind, after, STALLED), _stream_fault(dialect, "stall", 0, 0.0)]
    return script


def _stream_fault(dialect: str, kind: str, after: int, stall: float) -> JSON:
    match: JSON = {"provider": dialect}
    return {"type": "stream_fault", "kind": kind, "after_chunks": after, "stall_seconds": stall, "match": match}


def test_no_half_answer_is_stored_and_every_broken_one_is_asked_for_again(program: Path, tmp_path: Path) -> None:
    with llmock(program, tmp_path, "--stream-chunk-delay-ms", str(EVENT_MS)) as upstream:
        for dialect in PATHS:
            upstream.script(faults(dialect))
        calm = ("--between-payloads-timeout", str(PATIENT), "--requests-per-minute", str(CALM), "--max-failures", "9")
        answered = upstream.run_all(tmp_path, *calm)
        assert at(upstream.get("scenario"), "pending") == [], "not every fault came to pass"
        check(upstream, answered)
        read_on = [at(r, "seq") for r in each(at(upstream.get("requests"), "requests")) if at(r, "completed")]
        for finding in upstream.findings():
            # Full jitter draws a second pause shorter than the first every third time, which llmock calls no back-off;
            # and it does not know a retry that comes before the server has noticed that the client is gone.
            late = at(finding, "code") == "malformed_chunk_ignored" and at(finding, "requests", 0) not in read_on
            assert at(finding, "code") == "no_backoff" or late, finding
