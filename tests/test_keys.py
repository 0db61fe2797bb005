"""Keys: where they come from, where they may go, that they expire, and that nobody sees them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import trio
from raw_server import Peer, RawServer
from test_upstream import PROMPT, STREAM, FakePermit, whole

from controller.assemble import checked_url, read_key, reread_key
from controller.dialects.table import DIALECTS, dialect_for
from controller.gate import Permit
from controller.outcome import Completed, Failed, Kind, Outcome
from controller.settings import Settings
from controller.transport import Pool
from controller.upstream import SCRUBBED, Upstream

OLD, NEW = "old-key-0123456789", "new-key-9876543210"


def key_of(url: str, environment: dict[str, str], *, dialect: str | None = None, **more: str) -> str | None:
    """The key of a run against this URL."""
    settings = Settings(base_url=url, dialect=dialect, api_key_env=more.get("env"), api_key_file=more.get("file"))
    return read_key(settings, environment, url, dialect_for(dialect, url))


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("https://api.openai.com/v1/responses", "OPENAI_API_KEY"),
        ("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
        ("https://generativelanguage.googleapis.com", "GEMINI_API_KEY"),
        ("https://generativelanguage.googleapis.com", "GOOGLE_API_KEY"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
        ("https://name.openai.azure.com/openai/v1", "AZURE_OPENAI_API_KEY"),
        ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    ],
)
def test_a_provider_has_its_customary_variable(url: str, variable: str) -> None:
    assert key_of(url, {variable: "k"}) == "k"
    assert key_of(url, {variable: "k", "MINE": "other"}, env="MINE") == "other", "--api-key-env wins"


def test_the_first_variable_of_two_counts() -> None:
    both = {"GOOGLE_API_KEY": "second", "GEMINI_API_KEY": "first"}
    assert key_of("https://generativelanguage.googleapis.com", both) == "first"


@pytest.mark.parametrize("dialect", [None, "openai"])
def test_a_key_in_the_environment_does_not_go_to_a_stranger_who_speaks_the_dialect(dialect: str | None) -> None:
    with pytest.raises(ValueError, match=r"no key for api\.example\.com: give --api-key-env"):
        key_of("https://api.example.com/v1", {"OPENAI_API_KEY": OLD}, dialect=dialect)
    assert key_of("http://127.0.0.1:8000/v1", {"OPENAI_API_KEY": OLD}) is None


def test_a_server_that_runs_anywhere_has_its_variable_once_it_is_named() -> None:
    assert key_of("https://gpu.example.com/v1", {"VLLM_API_KEY": "k"}, dialect="vllm") == "k"


def test_a_missing_key_names_the_customary_variable() -> None:
    with pytest.raises(ValueError, match="or set ANTHROPIC_API_KEY"):
        key_of("https://api.anthropic.com", {})


def test_every_dialect_knows_a_variable() -> None:
    assert all(dialect.about.key_env for dialect in DIALECTS.values())


def test_an_entra_token_goes_as_bearer_and_an_azure_key_does_not() -> None:
    token = "eyJhbGciOi.eyJhdWQi.c2ln"
    for name in ("azure", "azure-responses"):
        assert DIALECTS[name].key_headers(token) == {"authorization": f"Bearer {token}"}
        assert DIALECTS[name].key_headers(OLD) == {"api-key": OLD}


def test_a_base_url_may_have_azures_version_and_no_other_query() -> None:
    url = "https://a.openai.azure.com/openai/deployments/d"
    assert checked_url(url + "/?api-version=2025-01-01-preview") == url + "?api-version=2025-01-01-preview"
    for query in ("?key=secret", "?api-version=1&key=secret", "?", "?api-version=1#x"):
        with pytest.raises(ValueError, match="query or fragment") as caught:
            checked_url(url + query)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("rest", ["?alt=sse&key=", "?key=", "#key="])
@pytest.mark.parametrize("scheme", ["https://", "", "ftp://"])
def test_a_key_in_the_base_url_is_not_repeated(scheme: str, rest: str) -> None:
    with pytest.raises(ValueError, match=r"--base-url '[a-z:/]*api\.example\.com/v1'") as caught:
        checked_url(f"{scheme}api.example.com/v1{rest}{OLD}")
    assert OLD not in str(caught.value)


def test_a_key_file_is_read_again_only_where_it_can_be(tmp_path: Path) -> None:
    file, pipe = tmp_path / "key", tmp_path / "pipe"
    settings = Settings(api_key_file=str(file))
    assert reread_key(settings) is None
    file.write_text(f" {NEW}\n")
    assert reread_key(settings) == NEW
    file.write_text("two words")
    assert reread_key(settings) is None
    os.mkfifo(pipe)
    assert reread_key(Settings(api_key_file=str(pipe))) is None, "opening it again would block for ever"
    assert reread_key(Settings()) is None


async def attempts(
    nursery: trio.Nursery,
    reread: Callable[[], str | None],
    accepted: str,
    at_once: int = 1,
    refusal: tuple[int, bytes] = (401, b'{"error":"no such key: %s"}'),
) -> tuple[list[Outcome], list[bytes]]:
    """What attempts with the old key come to at a server that takes only `accepted`, and the requests it saw."""
    requests: list[bytes] = []
    outcomes: list[Outcome] = []

    async def handler(peer: Peer) -> None:
        while (request := await peer.request()) is not None:
            requests.append(request)
            good = f"Bearer {accepted}".encode() in request
            echo = request.partition(b"Bearer ")[2].partition(b"\r\n")[0]
            status, words = refusal
            await peer.send(whole(STREAM) if good else whole(words.replace(b"%s", echo), status))

    async def one() -> None:
        outcomes.append(await upstream.attempt(PROMPT, cast(Permit, FakePermit())))

    server = await RawServer(handler).start(nursery)
    base = f"http://127.0.0.1:{server.port}/v1"
    dialect = DIALECTS["openai"]
    async with Upstream(transport=Pool(), base_url=base, dialect=dialect, key=OLD, reread_key=reread) as upstream:
        with trio.fail_after(5):
            async with trio.open_nursery() as inner:
                for _ in range(at_once):
                    inner.start_soon(one)
    nursery.cancel_scope.cancel()
    return outcomes, requests


GOOGLES = b'{"error":{"code":400,"message":"not valid","details":[{"reason":"API_KEY_INVALID"}]}}'


@pytest.mark.parametrize(
    ("status", "words", "blames_key"),
    [(400, GOOGLES, True), (403, b"{}", True), (400, b"{}", False), (404, b"{}", False)],
)
async def test_a_400_or_403_reads_the_key_again_where_it_may_be_to_blame(
    nursery: trio.Nursery, status: int, words: bytes, blames_key: bool
) -> None:
    outcomes, requests = await attempts(nursery, lambda: NEW, NEW, refusal=(status, words))
    assert (isinstance(outcomes[0], Completed), len(requests)) == (blames_key, 1 + blames_key)


async def test_a_401_reads_the_key_again_and_goes_on_with_a_new_one(nursery: trio.Nursery) -> None:
    reads: list[str] = []

    def reread() -> str:
        reads.append(NEW)
        return NEW

    outcomes, requests = await attempts(nursery, reread, NEW, at_once=5)
    assert all(isinstance(outcome, Completed) for outcome in outcomes)
    assert len(reads) == 1, "whoever finds it renewed needs not read"
    assert len(requests) <= 10


@pytest.mark.parametrize("fresh", [OLD, None, "no header\nmay hold this"])
async def test_a_401_with_the_same_key_is_fatal_at_once(nursery: trio.Nursery, fresh: str | None) -> None:
    outcomes, requests = await attempts(nursery, lambda: fresh, NEW)
    assert isinstance(outcomes[0], Failed)
    assert (outcomes[0].kind, len(requests)) == (Kind.FATAL, 1)


async def test_a_new_key_that_is_refused_too_is_fatal_after_one_more_request_and_never_shown(
    nursery: trio.Nursery,
) -> None:
    outcomes, requests = await attempts(nursery, lambda: NEW, "a third")
    assert isinstance(outcomes[0], Failed)
    assert (outcomes[0].kind, len(requests)) == (Kind.FATAL, 2)
    shown = repr(outcomes[0])
    assert SCRUBBED in shown
    assert OLD not in shown
    assert NEW not in shown
