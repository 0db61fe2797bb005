"""The whole daemon in virtual time: one prompt, one result, whatever happens; the sawtooth; one seed, one log."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
import trio

from controller.settings import Settings
from controller.telemetry import Exit, Stop
from policies.contract import JSON
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.virtual import Meddle, VirtualRun, nothing, run_virtual


def prompts(count: int) -> list[bytes]:
    return [json.dumps({"id": n, "prompt": f"prompt {n}"}).encode() for n in range(count)]


def run(
    lines: list[bytes],
    profile: str = "steady?words=3",
    *,
    seed: int = 0,
    done: frozenset[bytes] = frozenset(),
    meddle: Meddle = nothing,
    **changed: object,
) -> VirtualRun:
    chosen = Settings(seed=seed, **changed)  # type: ignore[arg-type]  # mypy can't follow the keywords
    return run_virtual(lines, Provider(load_profile(profile), seed=seed), chosen, done=done, meddle=meddle)


def keys(results: tuple[dict[str, JSON], ...]) -> list[bytes]:
    return [bytes.fromhex(str(result["key"])) for result in results]


def test_strange_manners_and_every_fault_that_passes_leave_whole_answers_alone() -> None:
    lines = prompts(60)
    out = run(lines, "hostile?words=3", seed=2, max_failures=20)
    assert (out.exit, out.tally.ok) == (Exit.OK, 60)
    errors = out.upstream["errors"]
    assert isinstance(errors, dict)
    assert len(errors) > 8
    calm = run(lines, "steady?words=3&manners=separators,split-surrogates,nul", seed=2)
    texts = [{str(result["id"]): result["text"] for result in each.results} for each in (out, calm)]
    assert texts[0] == texts[1]


# -- control


@pytest.fixture(scope="module")
def long_run() -> VirtualRun:
    return run(prompts(1400), "steady?words=1&rate=10&burst=10", seed=7, policy="aimd")


def test_the_refill_rate_is_a_sawtooth_around_the_hidden_limit(long_run: VirtualRun) -> None:
    """A limit of 10/s: after slow start it climbs past 10 by little, is cut to 0.7, and climbs again in a minute."""
    changes = [json.loads(line) for line in long_run.decisions]
    cuts = [change for change in changes if change["reason"] == "cut"]
    late = [cut for cut in cuts if cut["at"] > 30]
    assert len(late) >= 2
    for cut in late:
        assert 10 < cut["old"] < 11.5
        assert cut["new"] == pytest.approx(0.7 * cut["old"])
    climbs = [change for change in changes if change["reason"] == "increase"]
    assert all(change["new"] > change["old"] for change in climbs)
    assert len(climbs) > 500
    for one, next_one in itertools.pairwise(late):
        assert next_one["at"] - one["at"] == pytest.approx(60, abs=8)
    assert long_run.exit is Exit.OK
    assert 1400 / long_run.elapsed > 0.85 * 10
    assert long_run.tally.throttled <= 0.005 * 1400


def test_one_seed_gives_one_log_to_the_byte() -> None:
    first, again = (run(prompts(250), "steady?words=1&rate=10", seed=7) for _ in range(2))
    assert len(first.decisions) > 20
    assert again.decisions == first.decisions
    assert again.results == first.results
    other = run(prompts(100), "steady?words=1&latency_spread=0.5", seed=8)
    assert other.decisions != run(prompts(100), "steady?words=1&latency_spread=0.5", seed=9).decisions


def test_nothing_is_sent_while_the_server_asks_to_wait() -> None:
    out = run(prompts(400), "steady?words=1&rate=5&burst=1&retry_after=7", seed=3)
    assert out.tally.throttled > 0
    assert out.upstream["refused_during_hold"] == 0


def test_a_limit_of_five_a_minute_without_any_hint_is_survived() -> None:
    out = run(prompts(40), "gemini-free", seed=5)
    assert (out.exit, out.tally.ok) == (Exit.OK, 40)
    assert out.elapsed < 15 * 60, "8 windows would be the ideal"


def test_a_ceiling_is_kept_although_the_upstream_would_allow_more() -> None:
    out = run(prompts(50), "steady?words=1&rate=1000", requests_per_minute=60.0)
    assert out.elapsed == pytest.approx(49.5, abs=0.6)
    assert out.tally.throttled == 0


# -- ends


def test_an_upstream_that_never_answers_parks_the_run_resumably() -> None:
    out = run(prompts(20), "steady?error_share=1", give_up_after=600.0)
    assert (out.exit, out.tally.ok, out.tally.failed) == (Exit.UPSTREAM, 0, 0)
    assert out.elapsed == pytest.approx(600.0, abs=60)
    assert out.tally.attempts < 60, "an outage is probed, not hammered"


def test_a_router_that_turns_every_refusal_into_a_502_is_survived() -> None:
    """Half of all answers are 502 for no reason of the prompt's: held and probed, and hardly one is given up."""
    out = run(
        prompts(60), "flaky?words=1&error_share=0.5&error_status=502&reset_share=0&cut_share=0&stall_share=0", seed=2
    )
    assert out.tally.ok + out.tally.failed == 60
    assert out.tally.ok >= 55


def test_a_stop_finishes_what_is_under_way_and_leaves_the_rest_pending() -> None:
    async def stop_after_a_second(stop: Stop) -> None:
        await trio.sleep(1.0)
        stop.ask(Exit.TERMINATED, "SIGTERM")

    out = run(prompts(100), meddle=stop_after_a_second)
    assert out.exit is Exit.TERMINATED
    assert 3 <= out.tally.ok == len(out.results) <= 8
    assert out.tally.attempts == out.tally.ok
    assert out.elapsed < 2.0


def test_a_drain_ends_with_its_time_out() -> None:
    async def stop_after_a_second(stop: Stop) -> None:
        await trio.sleep(1.0)
        stop.ask(Exit.TERMINATED, "SIGTERM")

    out = run(prompts(100), "steady?latency=500", meddle=stop_after_a_second, drain_timeout=5.0)
    assert (out.exit, out.results) == (Exit.TERMINATED, ())
    assert out.elapsed == pytest.approx(6.0, abs=0.1)
    assert out.upstream["aborted"] == out.tally.attempts


def test_the_input_is_read_no_further_than_the_cap_on_attempts_in_flight() -> None:
    async def look_after_a_minute(stop: Stop) -> None:
        await trio.sleep(60.0)
        stop.at_once.set()
        stop.ask(Exit.TERMINATED, "SIGTERM")

    out = run(prompts(1000), "steady?latency=500&rate=1000", meddle=look_after_a_minute, max_in_flight=8)
    assert out.tally.attempts == 8
    assert out.intake.read <= 8 + 1, "one more waits in the intake's hand"


def test_a_line_without_a_model_ends_the_run_before_anything_is_sent() -> None:
    provider = Provider(load_profile("steady"))
    out = run_virtual([b'"x"'], provider, Settings(), defaults={})
    assert (out.exit, out.tally.attempts) == (Exit.USAGE, 0)


def test_models_have_limiters_of_their_own() -> None:
    lines = [json.dumps({"prompt": f"{n}", "model": f"model-{n % 3}"}).encode() for n in range(30)]
    out = run(lines)
    assert {json.loads(line)["model"] for line in out.decisions} <= {"model-0", "model-1", "model-2"}
    assert out.tally.ok == 30


def test_keys_do_not_depend_on_the_run() -> None:
    first, second = run(prompts(5), seed=1), run(prompts(5), seed=2)
    assert sorted(keys(first.results)) == sorted(keys(second.results))


def test_a_source_that_fails_midway_ends_the_run_resumably() -> None:
    def lines() -> Iterator[bytes]:
        yield from prompts(3)
        raise OSError(5, "Input/output error")

    out = run_virtual(lines(), Provider(load_profile("steady?words=1")), Settings())
    assert out.exit is Exit.LOCAL_IO
    assert 1 <= out.tally.ok == len(out.results)


def test_a_policy_that_never_holds_does_not_hammer_the_upstream() -> None:
    out = run(prompts(30), "gemini-free", seed=1, policy="fixed", policy_option=("refill_rate=3",))
    assert out.tally.ok == 30
    assert out.tally.attempts < 150


def test_an_hour_of_maintenance_pages_makes_no_error_results() -> None:
    """200 with HTML, or streams that end early: as bad as refused connections, so nothing is given up."""
    out = run(prompts(60), "steady?words=1&truncate_share=1", give_up_after=3600.0)
    assert (out.exit, out.tally.ok) == (Exit.UPSTREAM, 0)
    assert out.tally.attempts < 300


def test_patience_is_not_lost_over_what_is_nobodys_fault() -> None:
    slow_ceiling = run(prompts(3), requests_per_minute=0.05)
    assert (slow_ceiling.exit, slow_ceiling.tally.ok) == (Exit.OK, 3)
    profile = "steady?latency=2000&first_token=0.01&words=300"
    long_answers = run(prompts(3), profile, total_timeout=3600.0, between_payloads_timeout=3000.0)
    assert (long_answers.exit, long_answers.tally.ok) == (Exit.OK, 3)
    long_hold = run(prompts(30), "steady?rate=0.001&burst=20&retry_after=890", policy="aimd")
    assert (long_hold.exit, long_hold.tally.ok) == (Exit.OK, 30)
    bad = [json.dumps({"messages": [{"role": 1, "content": n}], "n": "no number"}).encode() for n in range(40)]
    only_bad = run(bad, give_up_after=5.0, requests_per_minute=60.0, most_alike=0)
    assert (only_bad.exit, only_bad.tally.failed) == (Exit.SOME_FAILED, 40), "an answer is a sign of life"
