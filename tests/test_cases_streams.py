"""Failures of other people's tools, chapters 1 and 3: framing, decoding, silence. Each test bears its case's number.

The cases are told in public bug reports; the comment beside a test names one of them.
"""

from __future__ import annotations

import json

import pytest
import trio
from raw_server import Peer
from wire_answers import FINE, Say, chunk, error, response, said
from wired import DIALECTS, wired

from controller.telemetry import Exit
from policies.contract import JSON

dialects = pytest.mark.parametrize("dialect", DIALECTS)
SEPARATORS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"]
PRETTY = json.dumps({"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}, indent=2)


@dialects
def test_c01_unicode_line_separators_do_not_cut_an_event(dialect: str) -> None:
    # https://github.com/florimondmanca/httpx-sse/issues/34
    text = wired("steady?words=3&manners=separators", dialect=dialect).texts["0"]
    assert str(text).endswith("one" + "".join(SEPARATORS) + "two")


@pytest.mark.parametrize("separator", SEPARATORS)
@dialects
def test_c01_unicode_line_separators_arrive_raw_as_they_are(separator: str, dialect: str) -> None:
    # Some of them may not stand in JSON unescaped; a server that writes them anyway means the same.
    events = [event.replace(b"HERE", separator.encode()) for event in said("oneHEREtwo", dialect)]
    assert wired(response(*events), dialect=dialect).result["text"] == f"one{separator}two"


@dialects
def test_c03_a_character_may_be_split_over_any_two_reads(dialect: str) -> None:
    # https://github.com/vllm-project/vllm/pull/38732
    text = "日本語 🌊 é"
    body = b"".join(events).decode() if (events := said("HERE", dialect)) else ""
    whole = body.replace("HERE", text).encode()
    first = whole.index(text.encode())
    says: list[Say] = [response(whole[:at], whole[at:]) for at in range(first, first + len(text.encode()))]
    out = wired(says, len(says), dialect=dialect)
    assert set(out.texts.values()) == {text}
    assert len(out.texts) == len(says)


@dialects
def test_c03_one_byte_at_a_time_gives_the_same_answer(dialect: str) -> None:
    slowly, calmly = (wired(f"steady?words=3&manners=separators{more}", dialect=dialect) for more in (",bytewise", ""))
    assert slowly.texts == calmly.texts


@dialects
@pytest.mark.parametrize("manners", ["no-space", "no-space,cr", "no-space,crlf,multi-line,fields,bom"])
def test_c05_data_needs_no_space_after_its_colon(manners: str, dialect: str) -> None:
    # https://github.com/googleapis/python-genai/pull/2584
    strange, plain = (wired(f"steady?words=3{more}", 3, dialect=dialect) for more in (f"&manners={manners}", ""))
    assert strange.texts == plain.texts
    assert len(plain.texts) == 3


def test_c05_exactly_one_space_is_dropped() -> None:
    body = b'data:  {"choices":[{"delta":{"content":" a"},"finish_reason":"stop"}]}\n\ndata:[DONE]\n\n'
    assert wired(response(body)).result["text"] == " a"


@dialects
@pytest.mark.parametrize("status", [200, 429])
@pytest.mark.parametrize("body", [PRETTY, f"[{PRETTY}\n]", f"{PRETTY}\n\n"])
def test_c06_an_error_over_many_lines_where_events_were_due_is_read(body: str, status: int, dialect: str) -> None:
    # https://github.com/googleapis/python-genai/issues/1162
    out = wired([response(body.encode(), status=status), response(*said("fine", dialect))], dialect=dialect)
    assert (out.result["text"], out.tally.throttled, out.tally.attempts) == ("fine", 1, 2)


@dialects
def test_c06_a_503_over_many_lines_is_read_too(dialect: str) -> None:
    body = PRETTY.replace("429", "503").replace("RESOURCE_EXHAUSTED", "UNAVAILABLE")
    out = wired([response(body.encode(), status=503), response(*said("fine", dialect))], dialect=dialect)
    assert (out.result["text"], out.tally.attempts) == ("fine", 2)


@dialects
def test_c08_the_terminator_ends_an_answer_though_the_socket_stays_open(dialect: str) -> None:
    # https://github.com/ltmoerdani/opencode-copilot-chat/pull/170
    held, plain = (wired(f"steady?words=3{more}", 30, dialect=dialect) for more in ("&manners=held", ""))
    assert held.texts == plain.texts
    assert held.elapsed < plain.elapsed + 2  # and not the half minute of the server's
    assert held.tally.attempts == 30


def test_c08_bytes_after_the_terminator_are_nothing_to_us() -> None:
    out = wired(response(*said("fine"), chunk("no"), b'data: {"error":{"code":500}}\n\n', ended=False))
    assert (out.result["text"], out.result["attempts"]) == ("fine", 1)


@dialects
@pytest.mark.parametrize("before", ["", ": keep-alive\n\n"])
def test_c30_a_stream_gone_silent_is_given_up_and_asked_again(before: str, dialect: str) -> None:
    # https://github.com/microsoft/amplifier/issues/339
    first = said("half", dialect)[0]

    async def silent(peer: Peer) -> None:
        await peer.send(response(first, ended=False))
        while before:  # comments are no sign of life
            await trio.sleep(10)
            await peer.send(b"%x\r\n%s\r\n" % (len(before), before.encode()))
        await trio.sleep_forever()

    out = wired([silent, response(*said("fine", dialect))], dialect=dialect, between_payloads_timeout=60.0)
    assert (out.result["text"], out.result["attempts"]) == ("fine", 2)
    assert 60 <= out.gaps[0] < 62
    assert out.pool.statistics().open <= 1, "the silent connection is gone"


def test_c30_silence_before_the_first_byte_is_given_up_too() -> None:
    async def silent(_: Peer) -> None:
        await trio.sleep_forever()

    out = wired([silent, FINE], first_payload_timeout=100.0)
    assert (out.result["text"], out.result["attempts"]) == ("fine", 2)
    assert 100 <= out.gaps[0] < 102


@dialects
def test_c33_bodies_left_unread_leave_no_connection_and_no_noise(
    dialect: str, capfd: pytest.CaptureFixture[str]
) -> None:
    # https://github.com/pydantic/httpx2/issues/1195; warnings are errors here, so a stray generator fails the test
    flood = response(*said("fine", dialect), *[b": on and on\n\n" * 100] * 50, ended=False)
    out = wired(flood, 100, dialect=dialect)
    assert (out.exit, len(out.texts), out.tally.attempts) == (Exit.OK, 100, 100)
    assert out.pool.statistics().open == 0
    assert "".join(capfd.readouterr()) == ""


def test_c33_a_stop_in_the_middle_of_many_bodies_is_silent_too(capfd: pytest.CaptureFixture[str]) -> None:
    async def flow(peer: Peer) -> None:
        await peer.send(response(chunk("a"), ended=False))
        while True:
            await trio.sleep(1)
            await peer.send(b"3\r\n:\n\n\r\n")

    unauthorized: JSON = {"error": {"message": "no", "code": "invalid_api_key"}}
    says: list[Say] = [*[flow] * 20, error(unauthorized, 401)]
    out = wired(says, 21, drain_timeout=5.0, max_in_flight=30)
    assert out.exit is Exit.UPSTREAM
    assert out.pool.statistics().open == 0
    assert "".join(capfd.readouterr()) == ""
