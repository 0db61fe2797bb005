"""What stands between an attempt and its answer in the simulated upstream, and how a refusal says when to come back."""

from __future__ import annotations

import json
import re
from email.utils import parsedate_to_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.contract import JSON
from simulations.hinting import FORMS
from simulations.profile import load_profile, profile_names
from simulations.provider import Provider
from simulations.script import Ending, Script

NOW = 1_790_000_000.0  # Unix seconds at the provider's start


def ask(provider: Provider, now: float, prompt: str = "hello", **parameters: JSON) -> Script:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], **parameters}
    return provider.arrive(now, "POST", "/v1/chat/completions", {}, json.dumps(body).encode())


def refusal(spec: str) -> tuple[dict[str, str], str]:
    """Headers and message of a refusal that would end after 2.25 s."""
    provider = Provider(load_profile(f"steady?rate=0.4&burst=1&{spec}"), calendar_offset=-NOW)
    ask(provider, 0.0)
    refused = ask(provider, 0.25)
    assert refused.status == 429
    return dict(refused.headers), json.loads(b"".join(piece.data for piece in refused.pieces))["error"]["message"]


# -- hints


@pytest.mark.parametrize(
    ("spec", "retry_after", "milliseconds", "told"),
    [
        ("hint=usual", "3", None, "2.25s"),
        ("hint=seconds", "3", None, "2.25s"),
        ("hint=ms", None, "3000", None),
        ("hint=both&retry_after=1.5", "2", "1500", None),
        ("hint=body", None, None, "2.25s"),
        ("hint=junk", "soon", None, None),
        ("hint=past-date", "Sun, 20 Sep 2026 14:13:20 GMT", None, None),
        ("hint=date", "Mon, 21 Sep 2026 14:13:24 GMT", None, None),
        ("hint=date&clock_skew=3600", "Mon, 21 Sep 2026 15:13:24 GMT", None, None),
        ("retry_after=0", "0", None, "0s"),
        ("retry_after=-43", "-43", None, None),
        ("retry_after=10800", "10800", None, "3h0m0s"),
        ("retry_after=none", None, None, None),
    ],
)
def test_a_hint_has_the_form_that_was_asked_for(
    spec: str, retry_after: str | None, milliseconds: str | None, told: str | None
) -> None:
    headers, message = refusal(spec)
    assert (headers.get("retry-after"), headers.get("retry-after-ms")) == (retry_after, milliseconds)
    assert message.partition("try again in ")[2].rstrip(".") == (told or "")


def test_a_date_can_be_read_against_the_date_of_the_answer() -> None:
    headers, _ = refusal("hint=date&clock_skew=-7200")
    delay = parsedate_to_datetime(headers["retry-after"]) - parsedate_to_datetime(headers["date"])
    assert 3 <= delay.total_seconds() <= 4  # dates have whole seconds


def test_a_short_hint_may_come_with_a_limit_per_day() -> None:
    headers, message = refusal("hint=per-day")
    assert headers["retry-after"] == "3"
    assert "per day (RPD)" in message


@given(st.floats(-86_400, 86_400), st.floats(0, 4e9))
def test_every_form_gives_headers_that_can_be_sent(seconds: float, wall: float) -> None:
    for form in FORMS.values():
        for name, value in form(seconds, wall):
            assert name in ("retry-after", "retry-after-ms")
            assert value.isascii()
            assert value.isprintable()


def test_an_attempt_that_could_not_know_breaks_no_hold() -> None:
    for form, broken in [("ms", 1), ("past-date", 0), ("junk", 0)]:
        provider = Provider(load_profile(f"steady?rate=1&burst=1&retry_after=5&hint={form}"))
        ask(provider, 0.0)
        provider.leave(ask(provider, 0.0).number, 0.05)
        ask(provider, 1.0)
        assert provider.statistics()["refused_during_hold"] == broken


# -- limits


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_in_the_box_answers(name: str) -> None:
    assert ask(Provider(load_profile(f"{name}?fault=none")), 0.0).status == 200


def statuses(provider: Provider, instants: list[float]) -> list[int]:
    return [ask(provider, now, f"{i}").status for i, now in enumerate(instants)]


def test_a_limit_per_minute_may_be_enforced_per_second() -> None:
    provider = Provider(load_profile("steady?limit=120&period=60&burst=none&quota=fixed&window=1&headers=true"))
    assert statuses(provider, [0.0, 0.1, 0.2, 1.0, 1.1, 1.2]) == [200, 200, 429, 200, 200, 429]
    assert dict(ask(provider, 2.0).headers)["x-ratelimit-limit-requests"] == "120"


def test_a_window_bounds_the_burst_of_a_bucket() -> None:
    provider = Provider(load_profile("steady?limit=60&burst=none&window=10&headers=true"))
    assert statuses(provider, [0.0] * 12).count(200) == 10
    assert dict(ask(provider, 30.0).headers)["x-ratelimit-limit-requests"] == "60"


def test_what_doubles_too_fast_is_refused() -> None:
    provider = Provider(load_profile("steady?quota=none&slope_seconds=10&slope_free=4"))
    assert statuses(provider, [0.0] * 6) == [200] * 4 + [429] * 2
    assert statuses(provider, [10.5] * 9) == [200] * 8 + [429]
    assert provider.statistics()["refused"] == {"slope": 3}


def test_a_queue_without_end_delays_the_first_token_instead_of_refusing() -> None:
    provider = Provider(load_profile("steady?quota=none&served_per_second=4&latency=1"))
    heads = [ask(provider, 0.0, stream=True).head_at for _ in range(9)]
    assert heads == pytest.approx([0.4 + i / 4 for i in range(9)])
    script = ask(provider, 0.0, stream=True)
    assert (script.pieces[0].offset, script.ends_at) == pytest.approx((2.65, 3.25))
    assert ask(provider, 10.0).head_at == 1.0


def test_nine_of_ten_can_be_refused_for_a_while() -> None:
    provider = Provider(load_profile("steady?quota=none&refuse_share=[[0,0],[10,0.9],[20,0]]"))
    assert set(statuses(provider, [5.0] * 500)) == {200}
    assert statuses(provider, [15.0] * 1000).count(429) == pytest.approx(900, abs=40)
    assert set(statuses(provider, [20.0] * 500)) == {200}


def test_a_prompt_that_is_refused_by_chance_passes_at_last() -> None:
    provider = Provider(load_profile("steady?quota=none&refuse_share=0.9"))
    assert 200 in [ask(provider, 0.0).status for _ in range(100)]


def test_an_outage_resets_or_has_a_status_and_ends() -> None:
    provider = Provider(load_profile("steady?outages=[[10,70]]"))
    down = ask(provider, 10.0)
    assert (down.head_at, down.ending, down.pieces) == (None, Ending.RESET, ())
    assert statuses(provider, [70.0]) == [200]
    assert provider.statistics()["refused"] == {"outage": 1}
    busy = ask(Provider(load_profile("steady?outages=[[10,70]]&outage_status=502")), 69.0)
    assert (busy.status, busy.ending) == (502, Ending.CLEAN)


# -- LLM tokens


@pytest.mark.parametrize(
    ("charge", "passed"), [("larger", 2), ("up-front", 1), ("input", 600), ("produced", 600), ("settled", 1)]
)
def test_tokens_are_charged_as_the_profile_says(charge: str, passed: int) -> None:
    provider = Provider(load_profile(f"steady?quota=none&tokens_per_minute=600&charge={charge}"))
    seen = [ask(provider, 0.0, "abc", max_tokens=300).status for _ in range(700)]
    assert seen.count(200) == passed


def test_settling_gives_back_what_was_not_used() -> None:
    provider = Provider(load_profile("steady?quota=none&tokens_per_minute=602&charge=settled&words=3"))
    first = ask(provider, 0.0, max_tokens=600)  # and 2 of input
    assert ask(provider, 0.0, max_tokens=500).status == 429
    provider.leave(first.number, 0.5)
    usage = json.loads(b"".join(piece.data for piece in first.pieces))["usage"]
    assert provider.statistics()["tokens_charged"] == usage["total_tokens"]
    assert ask(provider, 0.5, max_tokens=500).status == 200


def test_settling_books_what_was_not_foreseen() -> None:
    provider = Provider(load_profile("steady?quota=none&tokens_per_minute=600&charge=settled&words=400"))
    first = ask(provider, 0.0)  # no max_tokens: only its input is booked on arrival
    provider.leave(first.number, 0.5)
    assert ask(provider, 0.5).status == 429


# -- what it saw


def test_the_fullest_second_is_counted() -> None:
    provider = Provider(load_profile("steady"))
    for now in (0.0, 0.5, 0.9, 1.4, 3.0):
        ask(provider, now)
    assert provider.statistics()["most_in_a_second"] == 3


def test_a_client_may_leave_a_held_connection_once_it_has_everything() -> None:
    provider = Provider(load_profile("steady?manners=held"))
    for at in (0.4, 0.5, 30.5):
        provider.leave(ask(provider, 0.0, stream=True).number, at, gone=True)
    assert (provider.statistics()["aborted"], provider.statistics()["completed"]) == (1, 2)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("fault=broken", "fault must be any of error, reset"),
        ("manners=bom,polite", "manners must be any of padding, fields"),
        ("manners=3", "manners must be any of"),
        ("hint=wink", "hint must be one of usual, seconds, ms"),
        ("charge=never", "charge must be one of larger, up-front, input, produced, settled"),
        ("outages=[[5,2]]", "outages must be [[from_seconds, until_seconds], ...]"),
        ("outages=soon", "outages must be [[from_seconds, until_seconds], ...]"),
        ("refuse_share=2", "refuse_share must be a share of attempts, from 0 to 1"),
        ("fault=reset&fault_share=0.9&cut_share=0.2", "the shares of faults must sum up to 1 at most, not 1.1"),
        ("fault_at=-1", "fault_at must be a whole number from 0 to 100000 (events)"),
    ],
)
def test_a_mistake_is_told_in_one_line(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        load_profile(f"steady?{spec}")
    assert "\n" not in str(caught.value)
