"""Failures of other people's tools, chapter 6: the rate, what is in flight, and who pays for a refusal.

The whole daemon against the simulated upstream, over HTTP in memory: minutes of refusals pass in a moment.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator

import pytest
import trio
from command import at
from raw_server import Peer
from wire_answers import FINE, Say, chunk, error, response, said
from wired import WALL, wired

from controller.telemetry import Exit
from policies.contract import JSON

REFUSED = error({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 429)


def test_c60_a_short_drop_of_the_limit_fails_no_prompt() -> None:
    # https://github.com/oumi-ai/oumi/pull/2515
    out = wired("steady?rate=[[0,20],[5,5],[25,20]]&words=1&latency=0.3", 250, max_failures=1)
    assert (out.exit, len(out.texts)) == (Exit.OK, 250)
    assert out.tally.throttled > 0
    assert out.elapsed < 60


@pytest.mark.parametrize("policy", ["recall", "aimd", "mimd", "gradient", "sprint"])
def test_c60_waiting_for_a_throttle_holds_nothing_and_spends_nothing(policy: str) -> None:
    refused: list[Say] = [REFUSED] * 12
    out = wired([*refused, FINE], 4, policy=policy, max_failures=1, max_in_flight=4)
    assert (out.exit, len(out.texts), out.tally.throttled) == (Exit.OK, 4, 12)
    assert out.pool.statistics().opened <= 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_c62_when_nine_of_ten_are_refused_for_ten_minutes_some_get_through_and_none_is_lost(seed: int) -> None:
    # https://github.com/NVIDIA-NeMo/DataDesigner/issues/575
    out = wired("steady?rate=10&words=1&refuse_share=[[0,0.9],[600,0]]", 2600, seed=seed)
    assert (out.exit, len(out.texts)) == (Exit.OK, 2600), "no breaker, no loss"
    assert any(instant < 600 for instant in out.written_at), "progress while it lasted"
    recovered = sum(780 <= instant < 810 for instant in out.written_at)
    assert recovered > 0.6 * 10 * 30, "most of the rate again within three minutes"


def test_c62_three_minutes_of_it_lose_nothing_either() -> None:
    out = wired("steady?rate=10&words=1&refuse_share=[[0,0.9],[180,0]]", 60)
    assert (out.exit, len(out.texts), out.tally.failed) == (Exit.OK, 60, 0)


def test_c62_the_breaker_is_for_no_success_at_all() -> None:
    out = wired("steady?refuse_share=1", 5, give_up_after=300.0)
    assert (out.exit, out.results) == (Exit.UPSTREAM, [])
    assert out.elapsed >= 300
    assert "429" in str(out.stop.reason)


def test_c63_a_prompt_refused_again_and_again_is_still_answered() -> None:
    # https://github.com/NVIDIA-NeMo/DataDesigner/pull/703
    refused: list[Say] = [REFUSED] * 40
    out = wired([*refused, FINE], max_failures=1)
    assert (out.exit, out.result["text"], out.result["throttled"], out.result["attempts"]) == (Exit.OK, "fine", 40, 41)


def test_c63_every_prompt_of_an_unlucky_run_has_its_result() -> None:
    out = wired("steady?rate=5&words=1&refuse_share=[[0,0.6],[120,0]]", 100, max_failures=1)
    assert (out.exit, sorted(out.texts, key=int)) == (Exit.OK, [str(n) for n in range(100)])


QUEUE = "vllm?words=3"  # 20 per second are worked off, the rest waits without end; never a 429


def first_token(result: dict[str, JSON]) -> float:
    """Seconds from the request to the first payload."""
    return float(str(at(result, "timing", "first_token")))


@pytest.mark.slow
def test_c64_a_queue_without_end_is_noticed_from_its_waiting() -> None:
    # https://github.com/NVIDIA-NeMo/DataDesigner/issues/634
    gradient, blind = (wired(QUEUE, 700, policy=policy, max_in_flight=300) for policy in ("gradient", "recall"))
    longest, unminded = (max(map(first_token, out.results[100:])) for out in (gradient, blind))
    assert (gradient.exit, len(gradient.texts)) == (Exit.OK, 700)
    assert longest < 3 < unminded, "what is allowed to wait is little"
    assert gradient.elapsed < 1.25 * 700 / 20, "and the server is never idle for it"


@pytest.mark.parametrize("policy", ["recall", "aimd", "mimd", "gradient", "sprint"])
def test_c64_whatever_the_policy_the_cap_on_attempts_in_flight_is_kept(policy: str) -> None:
    out = wired(QUEUE, 60, policy=policy, max_in_flight=8)
    assert (out.exit, out.statistics["most_in_flight"]) == (Exit.OK, 8)


@pytest.mark.parametrize("kind", ["overloaded", "timeout", "server"])
def test_c64_a_server_in_trouble_is_asked_less_often(kind: str) -> None:
    out = wired(f"steady?quota=none&fault=http-{kind}", 200, give_up_after=120.0, max_failures=1000)
    assert out.exit is Exit.UPSTREAM
    assert len(out.results) == 0
    assert out.tally.attempts < 120, "less than one a second"


def test_c69_open_streams_flow_on_while_others_wait_for_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    # https://github.com/aio-libs/aiobotocore/issues/912
    def never(_: float) -> None:
        raise AssertionError("a wait that stops the event loop")

    monkeypatch.setattr(time, "sleep", never)

    async def flow(peer: Peer) -> None:
        whole = response(*said("x"), ended=True)
        await peer.send(response(chunk("x"), ended=False))
        for _ in range(30):
            await trio.sleep(1)
            piece = chunk("y")
            await peer.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        await peer.send(whole.partition(b"\r\n\r\n")[2])

    flowing: list[Say] = [flow] * 20
    held = error({"error": {"message": "slow down"}}, 429, retry_after="25")
    out = wired([*flowing, held, FINE], 40, between_payloads_timeout=3.0)
    assert (out.exit, len(out.texts), out.tally.attempts) == (Exit.OK, 40, 41)
    assert sum(str(text).endswith("y" * 30 + "x") for text in out.texts.values()) == 20


@pytest.mark.parametrize(
    "profile", ["steady?refuse_share=1", "steady?fault=empty-429", "steady?retry_after=1&rate=0.01"]
)
def test_c70_every_request_upstream_is_an_attempt_of_ours(profile: str) -> None:
    # https://github.com/HKUDS/nanobot/issues/2760
    out = wired(profile, 20, give_up_after=120.0)
    assert out.statistics["attempts"] == out.tally.attempts
    assert out.tally.attempts < 150, "refusals do not feed refusals"


@pytest.mark.parametrize("fault", ["error", "reset", "html-502", "in-band-server", "truncate"])
def test_c70_a_budget_of_four_is_four_requests(fault: str) -> None:
    out = wired(f"steady?fault={fault}", 1, max_failures=4)
    assert (out.statistics["attempts"], out.result["attempts"]) == (4, 4)


def test_c71_input_without_end_is_read_as_it_is_answered() -> None:
    # https://github.com/EleutherAI/lm-evaluation-harness/issues/3089
    drawn = 0

    def endless() -> Iterator[bytes]:
        nonlocal drawn
        for drawn in itertools.count(1):
            yield b'"prompt %d"' % drawn

    fine: list[Say] = [FINE] * 400
    out = wired([*fine, error({"error": {"code": "invalid_api_key"}}, 401)], endless(), max_in_flight=16)
    assert out.exit is Exit.UPSTREAM
    assert 400 <= drawn <= 400 + 3 * 16


@pytest.mark.slow
def test_c72_three_hundred_in_flight_are_three_hundred_connections() -> None:
    # https://github.com/UKGovernmentBEIS/inspect_ai/issues/847
    out = wired("steady?quota=none&latency=20&words=1", 700, max_in_flight=300, policy_option=("start_rate=200",))
    assert (out.exit, out.statistics["most_in_flight"]) == (Exit.OK, 300)
    assert out.pool.statistics().opened == 300
    assert out.elapsed < 100


def test_c73_waiting_for_a_free_place_is_no_fault_of_the_upstream() -> None:
    # https://github.com/encode/httpx/issues/1171
    out = wired("steady?quota=none&latency=10&words=1", 200, max_in_flight=10, max_failures=1, connect_timeout=1.0)
    assert (out.exit, len(out.texts), out.tally.attempts, out.statistics["connections"]) == (Exit.OK, 200, 200, 10)
    assert out.elapsed < 1.1 * 200
    assert [each for each in out.decisions if float(str(each["new"])) < float(str(each["old"]))] == []


@pytest.mark.parametrize("window", [1, 10])
def test_c75_a_minutes_limit_enforced_by_seconds_is_learned(window: int) -> None:
    # https://learn.microsoft.com/en-gb/answers/questions/2283452/openai-request-hit-429-when-rate-limit-is-not-reac
    out = wired(f"steady?limit=500&window={window}&quota=fixed&words=1&latency=0.2", 250)
    assert (out.exit, len(out.texts)) == (Exit.OK, 250)
    assert out.tally.throttled < 0.06 * 250
    assert 250 / out.elapsed > 0.5 * 500 / 60


def test_c75_no_minutes_worth_is_sent_at_second_zero() -> None:
    out = wired([FINE], 100)
    first = out.requests[0][0]
    assert sum(instant < first + 1 for instant, _ in out.requests) <= 7
    assert sum(instant < first + 3 for instant, _ in out.requests) <= 30


def test_c77_an_episode_of_refusals_is_a_few_records_however_many_prompts_wait() -> None:
    # https://github.com/bespokelabsai/curator/pull/256
    out = wired("steady?rate=100&burst=100&words=1&refuse_share=[[0,1],[10,0]]", 200)
    assert (out.exit, len(out.texts)) == (Exit.OK, 200)
    during = [each for each in out.decisions if float(str(each["at"])) < 10]
    assert 0 < len(during) <= 12, "no record for each turn of a loop"
    assert out.tally.throttled < 30


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_c112_a_wall_clock_that_jumps_changes_no_wait(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # https://github.com/langchain-ai/langchain/pull/24961
    def jumping() -> float:
        now = trio.current_time()
        return WALL + now + (step if now > 5 else 0.0)

    profile = "steady?rate=2&burst=1&words=1&hint=seconds"
    calm = wired(profile, 60)
    monkeypatch.setattr(time, "time", jumping)
    jumped = wired(profile, 60, wall_clock=jumping)
    assert jumped.decisions == calm.decisions
    assert jumped.written_at == calm.written_at
    assert jumped.tally.throttled == calm.tally.throttled > 0


def test_c112_a_date_is_read_once_and_then_waited_for_by_the_steady_clock() -> None:
    """The clock jumps an hour back while the wait is under way; the answer's own Date tells what its date means."""
    headers = {"retry_after": "Tue, 14 Nov 2023 22:13:50 GMT", "date": "Tue, 14 Nov 2023 22:13:20 GMT"}
    refused = error({"error": {"message": json.dumps("x")}}, 429, **headers)
    out = wired([refused, FINE], wall_clock=lambda: WALL - 3600 * (trio.current_time() > 5))
    assert 30 <= out.gaps[0] < 31
