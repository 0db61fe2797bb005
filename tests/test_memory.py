"""What runs leave for the next: laws of merging and of what was spent, then the file, then real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from attrs import evolve
from command import PATIENCE, at, environment, start, statistics, upstream, write_prompts
from hypothesis import given
from hypothesis import strategies as st

from controller.ceiling import GUARD, PERIOD, Ceiling
from controller.cli import commands
from controller.estimate import ANSWERS, Content, Estimator, Size
from controller.gates import limiter_maker
from controller.keeper import limits_of
from controller.knowledge import HINT, KEPT, MOST_MODELS, Account, Lessons, Limit, Run, Spending
from controller.limiter import Limiter
from controller.memory import NAME, Memory, account_name
from controller.outcome import Answer, Completed, Throttled
from controller.permits import Booking, Wait
from controller.settings import Settings
from policies.contract import JSON, Bounds

NOW = 1_700_000_000.0
URL, KEY = "https://api.example/v1", "sk-test-92f1c7"
OK = Completed(answer=Answer(text="yes", finish_reason="stop", model=None, usage=None, body={}))

INSTANTS = st.floats(NOW - 2 * KEPT, NOW + 1000.0)
LIMITS = st.builds(
    lambda limit, at, unit: Limit(limit=limit, at=at, unit=unit), st.floats(0.01, 1e6), INSTANTS, st.floats(1.0, 1e4)
)
SEARCHED = st.builds(lambda limit, at: Limit(limit=limit, at=at, refused=2 * limit), st.floats(0.01, 1e6), INSTANTS)
LESSONS = st.builds(
    lambda limits, estimates, at: Lessons(limits=limits, estimates=estimates, at=at),
    st.dictionaries(st.sampled_from(["requests", "tokens", "concurrency"]), LIMITS),
    st.dictionaries(st.sampled_from(["prose", "all", "output"]), st.floats(0.1, 1e4)),
    INSTANTS,
)
ACCOUNTS = st.builds(lambda models: Account(models=models), st.dictionaries(st.sampled_from("abc"), LESSONS))


# -- laws


@given(mine=ACCOUNTS, theirs=ACCOUNTS)
def test_merging_keeps_the_newer_of_each_limit_and_nothing_from_the_future_or_long_ago(
    mine: Account, theirs: Account
) -> None:
    merged = theirs.plus(mine, NOW)
    assert merged.plus(mine, NOW) == merged
    for model, lessons in merged.models.items():
        assert lessons
        for name, limit in lessons.limits.items():
            seen = [
                account.models[model].limits[name]
                for account in (mine, theirs)
                if model in account.models and name in account.models[model].limits
            ]
            assert limit.at == min(max(each.at for each in seen), NOW)
            assert NOW - KEPT < limit.at <= NOW


@given(first=LIMITS | SEARCHED, second=LIMITS | SEARCHED)
def test_a_limit_that_is_still_looked_for_replaces_none_that_was_found_within_the_hour(
    first: Limit, second: Limit
) -> None:
    kept = Lessons(limits={"requests": first}).plus(Lessons(limits={"requests": second})).limits["requests"]
    if first.refused is None and second.refused is not None and second.at < first.at + HINT:
        assert kept == first
    else:
        assert kept == (second if second.at >= first.at else first)


@given(account=ACCOUNTS, by=st.floats(-1e6, 1e6))
def test_a_shift_to_another_clock_changes_no_age(account: Account, by: float) -> None:
    for lessons in account.models.values():
        for name, limit in lessons.shifted(by).limits.items():
            assert limit.at - by == pytest.approx(lessons.limits[name].at, abs=1e-3)
            assert (limit.limit, limit.unit) == (lessons.limits[name].limit, lessons.limits[name].unit)


def test_of_very_many_models_the_newest_are_kept() -> None:
    models = {
        str(number): Lessons(limits={"requests": Limit(limit=1.0, at=NOW - number)})
        for number in range(MOST_MODELS + 5)
    }
    kept = Account(models=models).plus(Account(), NOW).models
    assert len(kept) == MOST_MODELS
    assert "0" in kept
    assert str(MOST_MODELS + 4) not in kept


def sent_by(ceiling: Ceiling, costs: list[float], now: float, until: float) -> list[tuple[float, float]]:
    """What a queue that never empties sends between two instants."""
    log: list[tuple[float, float]] = []
    for cost in costs:
        while (delay := ceiling.delay(cost, now)) > 0:
            if now + delay > until:
                return log
            now += delay
        ceiling.take(cost, now)
        log.append((now, cost))
    return log


@given(
    costs=st.lists(st.floats(1.0, 1500.0), min_size=5, max_size=60),
    written_at=st.floats(0.0, 50.0),
    lives_on=st.floats(0.0, 10.0),
    pause=st.floats(0.0, 70.0),
    clean=st.booleans(),
)
def test_no_minute_exceeds_a_ceiling_even_when_a_run_is_killed_and_another_begins_at_once(
    costs: list[float], written_at: float, lives_on: float, pause: float, *, clean: bool
) -> None:
    """What was sent after the last writing is not in the file; the run's own pace bounds it, and one cost above it."""
    first, per_minute = Ceiling(1000.0, 0.0), 1000.0
    before = sent_by(first, costs[: len(costs) // 2], 0.0, written_at)
    spending = first.spending(written_at)
    killed_at = written_at
    if not clean and before:
        killed_at = written_at + lives_on
        before += sent_by(first, costs[len(costs) // 2 :], written_at, killed_at)
    noted = Run(
        at=written_at,
        ended=clean,
        ceilings={"tokens": per_minute},
        models={"m": {"tokens": spending}} if before else {},
    )
    again = killed_at + pause
    second = Ceiling(per_minute, again)
    second.take_over(Account(runs={"x": noted}).spent("m", again).get("tokens", Spending()))
    after = sent_by(second, costs, again, again + 100.0)
    largest = max([cost for _, cost in before], default=0.0)
    for began, _ in before + after:
        inside = [cost for instant, cost in before + after if began <= instant <= began + PERIOD - GUARD]
        allowed = per_minute if clean or killed_at == written_at else per_minute + largest
        assert len(inside) == 1 or sum(inside) <= allowed * 1.001 + 1.0


def test_a_run_that_was_killed_is_taken_to_have_gone_on_at_its_pace_and_costs_the_next_no_pause() -> None:
    first = Ceiling(60.0, 0.0)
    sent_by(first, [1.0] * 100, 0.0, 90.0)
    killed = Run(at=90.0, ceilings={"requests": 60.0}, models={"m": {"requests": first.spending(90.0)}})
    second = Ceiling(60.0, 95.0)
    second.take_over(killed.spent("m", 95.0)["requests"])
    sent = [instant for instant, _ in sent_by(second, [1.0] * 30, 95.0, 120.0)]
    assert sent[0] < 98.0
    assert all(later - sooner == pytest.approx(1.0, abs=0.02) for sooner, later in pairwise(sent[5:]))


def test_the_debt_of_a_huge_cost_outlives_its_run() -> None:
    first = Ceiling(60.0, 0.0)
    sent_by(first, [600.0], 0.0, 1.0)
    ended = Run(at=1.0, ended=True, ceilings={"tokens": 60.0}, models={"m": {"tokens": first.spending(1.0)}})
    second = Ceiling(60.0, 101.0)
    second.take_over(ended.spent("m", 101.0)["tokens"])
    assert second.delay(1.0, 101.0) == pytest.approx(500.0, abs=2.0)


# -- what a limiter begins with and leaves


def made(lessons: Lessons, now: float = 1000.0, **settings: object) -> Limiter:
    return limiter_maker(Settings(**settings))(now, lessons, {})  # type: ignore[arg-type]


def known(age: float, **limits: float) -> Lessons:
    units = {"requests": 1.0, "concurrency": 1.0}
    return Lessons(
        limits={
            name: Limit(limit=limit, unit=units.get(name, 500.0), at=1000.0 - age) for name, limit in limits.items()
        }
    )


@pytest.mark.parametrize("policy", ["recall", "aimd"])
def test_a_known_limit_is_begun_with_and_an_old_one_is_nothing(policy: str) -> None:
    cold = made(Lessons(), policy=policy).statistics(1000.0).refill_rate["requests"]
    fresh, old = (
        made(known(age, requests=100.0), policy=policy).statistics(1000.0).refill_rate["requests"]
        for age in (60.0, HINT + 1)
    )
    assert cold == old == 5.0
    assert cold < fresh <= 100.0


def test_fresh_token_limits_are_awake_from_the_start_in_their_old_units() -> None:
    limiter = made(known(60.0, requests=10.0, tokens=2000.0))
    assert limiter.dimensions["tokens"].unit == 500.0
    assert limiter.statistics(1000.0).refill_rate["tokens"] <= 2000.0
    assert set(limiter.dormant) == {"input_tokens", "output_tokens"}
    assert list(made(known(700.0, tokens=2000.0)).dimensions) == ["requests"]


def test_a_fresh_limit_on_attempts_in_flight_holds_from_the_start() -> None:
    limiter = made(known(60.0, concurrency=2.0))
    limiter.dimensions["requests"].bucket.level = 10.0
    cost = dict.fromkeys(("requests", "tokens", "input_tokens", "output_tokens"), 1.0)
    answers = [limiter.admit(cost, 1000.0) for _ in range(3)]
    assert [isinstance(answer, Booking) for answer in answers] == [True, True, False]


def test_only_what_this_run_tested_is_left_to_the_next() -> None:
    limiter = made(known(60.0, requests=100.0, concurrency=8.0))
    assert limits_of(limiter, 1001.0) == {}
    waited, now, cost = None, 1000.0, dict.fromkeys(("requests", "tokens", "input_tokens", "output_tokens"), 1.0)
    for _ in range(3):
        answer = limiter.admit(cost, now, waited=waited)
        if isinstance(answer, Wait):
            waited, now = answer, answer.until
            answer = limiter.admit(cost, now, waited=waited)
        assert isinstance(answer, Booking)
        limiter.settle(answer, OK, now)
    assert limits_of(limiter, now + 50.0)["requests"] == Limit(limit=100.0, at=now)
    busy = limiter.admit(cost, now + 1.0)
    assert isinstance(busy, Booking)
    limiter.settle(busy, Throttled(status=429, message="", dimension="concurrency"), now + 1.0)
    assert limits_of(limiter, now + 2.0)["concurrency"].limit == 1.0


def test_a_search_that_a_run_was_ended_in_is_left_to_the_next() -> None:
    known = {"requests": Limit(limit=8.0, refused=16.0, at=940.0)}
    limiter = made(Lessons(limits=known))
    assert limiter.dimensions["requests"].pace.bounds == Bounds(held=8.0, refused=16.0)
    assert limits_of(limiter, 1001.0) == {}, "nothing was tested"
    limiter.dimensions["requests"].tested_at = 1001.0
    assert limits_of(limiter, 1002.0) == {"requests": Limit(limit=8.0, refused=16.0, at=1001.0)}


def test_estimates_go_on_where_an_earlier_run_left_them_until_there_are_enough_new_answers() -> None:
    size = Size(tokens=100.0, kind=Content.CODE)
    first, second = Estimator(), Estimator()
    for _ in range(ANSWERS):
        first.learn_input(size, 100, 250)
        first.learn_output(40)
    second.recall(first.learned)
    assert (second.input_tokens(size), second.output_tokens()) == (250, 40)
    assert second.learned == first.learned
    for _ in range(ANSWERS):
        second.learn_input(size, 250, 120)
    assert second.input_tokens(size) == 120


# -- the file


def memory(folder: Path, said: list[str] | None = None, **more: object) -> Memory:
    opened = Memory.open(folder, URL, KEY, (said if said is not None else []).append, **more)  # type: ignore[arg-type]
    assert said is not None or not opened._silent
    return opened


def lessons_at(age: float = 0.0, limit: float = 20.0, refused: float | None = None) -> dict[str, Lessons]:
    return {
        "m": Lessons(
            limits={"requests": Limit(limit=limit, at=100.0 - age, refused=refused)}, estimates={"all": 1.1}, at=100.0
        )
    }


def test_what_one_run_keeps_the_next_knows_with_its_age(tmp_path: Path) -> None:
    memory(tmp_path / "new" / "folder").keep(lessons_at(age=30.0, refused=30.0), None, now=100.0)
    found = memory(tmp_path / "new" / "folder").lessons("m", 5.0)
    assert (found.limits["requests"].limit, found.limits["requests"].refused) == (20.0, 30.0)
    assert 5.0 - found.limits["requests"].at == pytest.approx(30.0, abs=2.0)
    assert found.estimates == {"all": 1.1}


def test_another_key_another_address_and_another_model_know_nothing_of_it(tmp_path: Path) -> None:
    memory(tmp_path).keep(lessons_at(), None, now=100.0)
    assert not memory(tmp_path).lessons("other", 0.0)
    for url, key in ((URL, "sk-other"), (URL, None), (URL + "/b", KEY)):
        assert not Memory.open(tmp_path, url, key, print).lessons("m", 0.0)


def test_the_file_is_for_its_owner_and_holds_neither_key_nor_path(tmp_path: Path) -> None:
    Memory.open(tmp_path, URL + "/secret-path", KEY, print).keep(lessons_at(), None, now=100.0)
    content = (tmp_path / NAME).read_text()
    assert KEY not in content
    assert KEY[3:] not in content
    assert "secret-path" not in content
    assert "api.example" in content
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0
    assert KEY not in repr(memory(tmp_path))


def test_a_fingerprint_is_short_and_another_one_with_another_salt() -> None:
    host, _, fingerprint = account_name(URL, KEY, "a").partition(" ")
    assert (host, len(fingerprint)) == ("api.example", 6)
    assert account_name(URL, KEY, "a") == account_name(URL, KEY, "a") != account_name(URL, KEY, "b")


IN_IT = b'{"models": {"m": {"limits": {"requests": {"limit": 20.0, "at": 9e9}}}}}'
SOUND = b'{"version": 1, "salt": "x", "accounts": {"a": ' + IN_IT + b"}}"


def test_the_sound_file_that_the_damaged_ones_are_made_of_is_taken(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(SOUND)
    memory(tmp_path).keep(lessons_at(), None, now=100.0)
    assert set(accounts(tmp_path)) > {"a"}


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"null",
        b'{"version": 1, "salt": "x", "accounts": 3}',
        SOUND.replace(b"20.0", b"-1"),
        SOUND.replace(b"20.0", b"NaN"),
        SOUND.replace(b"20.0", b"1" + b"0" * 400),
        b'{"version": 1, "salt": "x", "accounts": {"a": {"models": {"m": {"at": 1e999}}}}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_said_in_one_line_and_replaced(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / NAME).write_bytes(damage)
    said: list[str] = []
    opened = memory(tmp_path, said)
    assert not opened.lessons("m", 0.0)
    opened.keep(lessons_at(), None, now=100.0)
    assert len(said) == 1
    assert "is damaged" in said[0]
    assert "\n" not in said[0]
    assert memory(tmp_path).lessons("m", 0.0)


def test_a_file_of_a_later_version_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"version": 2, "whatever": []}')
    said: list[str] = []
    memory(tmp_path, said).keep(lessons_at(), None, now=100.0)
    assert (tmp_path / NAME).read_text() == '{"version": 2, "whatever": []}'
    assert len(said) == 1
    assert "newer tidegate" in said[0]


def in_the_way(folder: Path) -> Path:
    """A file where the folder should be: not even root can write there."""
    folder.write_text("")
    return folder


def a_folder_for_the_file(folder: Path) -> Path:
    (folder / NAME).mkdir(parents=True)
    return folder


@pytest.mark.parametrize("spoil", [in_the_way, a_folder_for_the_file])
def test_a_place_that_cannot_be_written_is_said_once(tmp_path: Path, spoil: Callable[[Path], Path]) -> None:
    said: list[str] = []
    opened = memory(spoil(tmp_path / "state"), said)
    for _ in range(3):
        opened.keep(lessons_at(), None, now=100.0)
    assert len(said) == 1
    assert "can't be kept" in said[0]


def test_forget_drops_all_models_of_this_key_and_leaves_other_keys_and_what_was_sent(tmp_path: Path) -> None:
    sent = Run(at=100.0, ended=True, ceilings={"requests": 60.0}, models={"m": {"requests": Spending(debt=50.0)}})
    memory(tmp_path).keep({**lessons_at(), "n": lessons_at()["m"]}, sent, now=100.0)
    Memory.open(tmp_path, URL, "sk-other", print).keep(lessons_at(), None, now=100.0)
    said: list[str] = []
    forgetful = memory(tmp_path, said, forget=True)
    assert said == ["--forget: dropped 2 learned limits of 2 models at api.example with this key"]
    assert not forgetful.lessons("m", 0.0)
    assert not memory(tmp_path).lessons("n", 0.0)
    assert forgetful.spent("m", 0.0)["requests"].debt > 45.0
    assert Memory.open(tmp_path, URL, "sk-other", print).lessons("m", 0.0)


def test_accounts_that_nobody_has_renewed_for_long_are_dropped_as_tokens_that_expire_leave_one_an_hour(
    tmp_path: Path,
) -> None:
    for hour in range(5):
        Memory.open(tmp_path, URL, f"token-{hour}", print).keep(lessons_at(), None, now=100.0)
    fresh = memory(tmp_path)
    fresh.wall_clock = lambda: time.time() + 2 * KEPT
    fresh.keep(lessons_at(), None, now=100.0)
    assert len(json.loads((tmp_path / NAME).read_text())["accounts"]) == 1


def test_an_older_writing_that_comes_late_undoes_nothing(tmp_path: Path) -> None:
    opened = memory(tmp_path)
    ended = Run(at=200.0, ended=True, ceilings={"requests": 60.0})
    opened.keep(lessons_at(limit=7.0), ended, now=200.0)
    opened.keep(lessons_at(age=50.0, limit=9.0), evolve(ended, at=190.0, ended=False), now=200.0)
    again = memory(tmp_path)
    assert again.lessons("m", 0.0).limits["requests"].limit == 7.0
    assert again.spent("m", 0.0)["requests"].log == ()


WRITER = """
import sys
import time
from pathlib import Path
from controller.knowledge import Lessons, Limit
from controller.memory import Memory
name = sys.argv[2]
memory = Memory.open(Path(sys.argv[1]), "https://api.example/v1", "sk-" + name[0], print)
for number in range(10):
    limits = {"requests": Limit(limit=number + 1.0, at=100.0 + number)}
    memory.keep({name: Lessons(limits=limits, at=100.0)}, None, now=200.0)
    time.sleep(0.02)
"""


def test_many_processes_on_one_file_lose_nothing_and_never_show_half_a_file(tmp_path: Path) -> None:
    """Two models of one key, and another key; a reader looks all the time."""
    names = ["a1", "a2", "b1"]
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True, env=environment()) for name in names
    ]
    while any(writer.poll() is None for writer in writers):
        if (tmp_path / NAME).exists():
            json.loads((tmp_path / NAME).read_bytes())
        time.sleep(0.001)
    assert [writer.communicate()[0] for writer in writers] == [""] * 3
    for name in names:
        found = Memory.open(tmp_path, URL, "sk-" + name[0], print).lessons(name, 0.0)
        assert found.limits["requests"].limit == 10.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["limits.json", "limits.lock"]


def test_a_writer_that_is_killed_in_the_middle_leaves_a_whole_file(tmp_path: Path) -> None:
    memory(tmp_path).keep(lessons_at(), None, now=100.0)
    for number in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), "a1"], env=environment())
        deadline, before = time.monotonic() + PATIENCE, (tmp_path / NAME).stat().st_mtime_ns
        while (tmp_path / NAME).stat().st_mtime_ns == before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.003 * number)
        writer.kill()
        writer.wait()
        assert memory(tmp_path).lessons("m", 0.0), "nothing was said, and what was known still is"


# -- real runs


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own state folder, of a user who has a memory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIDEGATE_REMEMBER", "yes")
    return tmp_path / "home"


def run_here(tmp_path: Path, *arguments: str | Path) -> object:
    """`tidegate run` in this process, with three prompts and a ceiling, so that there is something to keep."""
    prompts = write_prompts(tmp_path / "p.jsonl", 3)
    common = ["run", prompts, "-o", tmp_path / "r.jsonl", "--no-resume", "--requests-per-minute", "6000"]
    code: object = commands.main(list(map(str, [*common, *arguments])), standalone_mode=False)
    return code


def accounts(folder: Path) -> dict[str, JSON]:
    found = json.loads((folder / NAME).read_bytes())["accounts"]
    assert isinstance(found, dict)
    return found


def test_simulated_upstreams_are_not_remembered_unless_a_folder_is_named(tmp_path: Path, home: Path) -> None:
    assert run_here(tmp_path, "--base-url", "sim:steady") == 0
    assert not home.exists()
    assert run_here(tmp_path, "--base-url", "sim:steady", "--state", home / "s") == 0
    assert [name.partition(" ")[0] for name in accounts(home / "s")] == ["sim:steady"]
    assert not (home / "tidegate").exists()


def test_the_users_own_folder_is_used_for_real_upstreams(tmp_path: Path, home: Path) -> None:
    with upstream() as url:
        assert run_here(tmp_path, "--base-url", url, "--model", "m", "--no-remember") == 0
        assert not home.exists()
        assert run_here(tmp_path, "--base-url", url, "--model", "m") == 0
    assert [name.partition(":")[0] for name in accounts(home / "tidegate")] == ["127.0.0.1"]


def test_a_memory_that_cannot_be_kept_stops_no_run(
    tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_here(tmp_path, "--base-url", "sim:steady", "--state", in_the_way(tmp_path / "state")) == 0
    assert capfd.readouterr().err.count("what is learned can't be kept") == 1


def test_a_run_leaves_its_limit_and_forget_drops_it(
    tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ("--base-url", "sim:steady?rate=5&burst=1&latency=0.05", "--state", home, "--policy", "aimd")
    assert run_here(tmp_path, *given, "--policy-option", "start_rate=40") == 0
    (account,) = accounts(home).values()
    limit = at(account, "models", "sim", "limits", "requests", "limit")
    assert isinstance(limit, float)
    assert 1.0 < limit <= 40.0
    capfd.readouterr()
    assert run_here(tmp_path, *given, "--forget", "--first", "1") == 0
    assert "--forget: dropped 1 learned limits of 1 models at sim:steady" in capfd.readouterr().err
    (account,) = accounts(home).values()
    assert "requests" not in str(at(account, "models"))


@pytest.mark.slow
def test_a_ceiling_holds_over_a_kill_and_a_restart(tmp_path: Path) -> None:
    """One a minute: what was killed in its first second had sent it."""
    prompts, state = write_prompts(tmp_path / "p.jsonl", 5), tmp_path / "state"
    memo = environment(TIDEGATE_REMEMBER="yes")
    with upstream("steady?latency=0.2") as url:
        common = (prompts, "--base-url", url, "--model", "m", "--state", state, "--requests-per-minute", "1")
        first = start(*common, env=memo)
        wait_until(lambda: statistics(url)["attempts"] == 1)
        first.kill()
        first.communicate()
        second = start(*common, env=memo)
        wait_until(lambda: len(runs_in(state)) == 2)
        time.sleep(3.0)
        assert statistics(url)["attempts"] == 1
        second.send_signal(signal.SIGTERM)
        second.communicate(timeout=PATIENCE)
        os.unlink(state / NAME)
        third = start(*common, env=memo)
        wait_until(lambda: statistics(url)["attempts"] == 2, within=40.0)  # who knows nothing sends at once
        third.kill()
        third.communicate()


def wait_until(true: Callable[[], bool], within: float = PATIENCE) -> None:
    """What another process does is looked at from time to time."""
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs_in(state: Path) -> dict[str, JSON]:
    (account,) = accounts(state).values()
    found = at(account, "runs")
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_a_run_that_is_killed_has_kept_what_it_learned(tmp_path: Path) -> None:
    prompts, state = write_prompts(tmp_path / "p.jsonl", 2000), tmp_path / "state"
    with upstream("steady?rate=10&burst=5&latency=0.05&words=3") as url:
        given = (prompts, "--base-url", url, "--model", "m", "--state", state)
        killed = start(*given, env=environment(TIDEGATE_REMEMBER="yes"))
        wait_until((state / NAME).exists)
        killed.kill()
        killed.communicate()
    (account,) = accounts(state).values()
    limit = at(account, "models", "m", "limits", "requests", "limit")
    assert isinstance(limit, float), "a rate that held, at least: two refusals, which measure it, may take as long"
    assert 5.0 < limit < 15.0


@pytest.mark.slow
@pytest.mark.alone
def test_a_second_run_begins_where_the_first_ended(tmp_path: Path) -> None:
    """A thousand prompts at twenty a second, and a burst of twenty: 49.5 s at best. Seconds are the run's own."""
    state, prompts = tmp_path / "state", write_prompts(tmp_path / "p.jsonl", 1000)
    seconds, refused = [], []
    with upstream("steady") as url:
        for number in range(2):
            before = statistics(url)
            given = (prompts, "--base-url", url, "--model", "m", "--state", state, "-o", tmp_path / f"{number}.jsonl")
            process = start(*given, env=environment(TIDEGATE_REMEMBER="yes"))
            try:
                _, said = process.communicate(timeout=120.0)
            finally:
                process.kill()  # does nothing to one that has ended
            assert process.returncode == 0, said
            seconds.append(float(re.findall(r"([\d.]+) s$", said, re.MULTILINE)[-1]))
            after = statistics(url)
            refused.append(int(str(after["attempts"])) - int(str(before["attempts"])) - 1000)
    assert seconds[0] <= 60.0, (seconds, refused)
    assert seconds[1] <= 54.0, (seconds, refused)
    assert refused[1] <= refused[0]
