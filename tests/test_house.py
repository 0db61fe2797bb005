"""The law of the house: one line, one result, whatever happens to upstream, disk and process.

A life of a run is the whole daemon in virtual time over its real files, journal, recount and note of what is under way;
it ends at random by a signal, by a disk that is full in the middle of a line, or by being killed, and the next life
repairs the files and goes on.
TIDEGATE_SEED=123 pytest tests/test_house.py replays a seed; TIDEGATE_SEEDS=2000 with -m slow tries many.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from disks import largest_file
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.proof import prove
from controller.repair import Ledger, look
from controller.settings import Settings
from controller.store import Store
from controller.telemetry import Exit, Stop
from controller.underway import Underway
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.virtual import Meddle, VirtualRun, run_virtual

FAULTY = (
    "flaky?words=3&rate={rate}&refuse_share={storm}"
    "&error_share={error}&reset_share={reset}&truncate_share={cut}&stall_share={stall}"
)
SEED = os.environ.get("TIDEGATE_SEED")
SEEDS = int(os.environ.get("TIDEGATE_SEEDS", "200"))
LAST = float("inf")  # the life that is let live


class KilledError(Exception):
    """kill -9: nothing is drained, nothing more is written."""


def lines_of(rng: random.Random) -> list[bytes]:
    """With ids and without, some twice, some bad."""
    lines = [json.dumps({"id": n, "prompt": f"prompt {n}"}).encode() for n in range(rng.randint(1, 30))]
    lines += [rng.choice([b'"twice"', b"{broken", b'{"id": 1, "prompt": "other content"}', lines[0]]) for _ in range(5)]
    rng.shuffle(lines)
    return lines


def profile_of(rng: random.Random) -> str:
    return FAULTY.format(
        rate=rng.choice([0.5, 5, 50]),
        storm=rng.choice([0, 0, 0.5]),
        error=rng.choice([0, 0.1, 0.4]),
        reset=rng.choice([0, 0.1, 0.3]),
        cut=rng.choice([0, 0.2]),
        stall=rng.choice([0, 0.05]),
    )


def end_at(moment: float, rng: random.Random, provider: Provider, in_flight: list[int]) -> Meddle:
    """A signal that drains for a while, or a kill, which notes what was in flight."""
    patience, kill = rng.choice([0.0, 1.0, 100.0]), rng.random() < 0.4

    async def meddle(stop: Stop) -> None:
        await trio.sleep(moment)
        if kill and moment < LAST:
            in_flight.append(int(str(provider.statistics()["in_flight"])))
            raise KilledError
        stop.ask(Exit.TERMINATED, "SIGTERM")
        await trio.sleep(patience)
        stop.at_once.set()

    return meddle


def opened(path: Path, rng: random.Random, writes: int | None) -> Store:
    """The files of a run, written without threads. After so many writes the disk is full in the middle of one."""
    store, left = Store.open(Settings(output=str(path))), iter(range(1000 if writes is None else writes))
    output = store.journal._output
    assert output is not None

    async def append(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if next(left, None) is not None:
            output.append_now(data)
            return
        with largest_file(os.fstat(output.fd).st_size + rng.randrange(len(data))):
            output.append_now(data)

    store.journal.append = append
    return store


def killed(store: Store) -> None:
    """The process is gone, and leaves everything as it is."""
    store.journal.close()
    assert store.underway is not None
    assert store.underway._fd is not None
    os.close(store.underway._fd)


def one_life(lines: list[bytes], profile: str, path: Path, moment: float, rng: random.Random) -> VirtualRun | None:
    """The run, None if it was killed."""
    seed = rng.randrange(1 << 32)
    store = opened(path, rng, rng.choice([None, None, rng.randint(0, 10)]) if moment < LAST else None)
    assert store.underway is not None
    lost, earlier = len(store.underway.lost), store.journal.ledger.answered
    assert not any(key in earlier for key in store.underway.lost), "what has its answer is not paid again"
    # Where nine of ten attempts fail, a quarter of an hour without success is no reason to end the story.
    chosen = Settings(seed=seed, max_in_flight=rng.randint(1, 8), most_alike=0, give_up_after=1e6)
    provider, in_flight = Provider(load_profile(profile), seed=seed), list[int]()
    meddle = end_at(moment, rng, provider, in_flight)
    known = frozenset(key for key, _ in store.journal.ledger.keys)
    out = None
    try:
        out = run_virtual(lines, provider, chosen, done=known, store=store, meddle=meddle)
    except* KilledError:
        killed(store)
    if out is not None:
        end(store, out, path)
    left = Underway.open(str(path), look(str(path)))
    most = sum(in_flight) if out is None else 2 * chosen.max_in_flight  # cut off, or answered and not to be written
    assert len(left.lost) <= lost + most, "a crash costs at the most what was in flight"
    left.close(complete=False)
    return out


def end(store: Store, out: VirtualRun, path: Path) -> None:
    """As a run closes its files, and what the next one finds."""
    with store:
        ledger = store.journal.recount()
        assert ledger is not None
        proof = prove(out.intake, out.tally, ledger)
        store.complete = out.exit in (Exit.OK, Exit.SOME_FAILED)
        assert proof.missing == proof.double == 0, proof
        assert proof.pending == 0 or not store.complete
    now = look(str(path))
    assert sorted(key for key, _ in now.keys) == sorted(key for key, _ in ledger.keys), "the recount is what is there"
    assert (now.damaged, now.torn_bytes) == (0, 0), "what a full disk cut is cut back"
    assert not store.complete or os.listdir(path.parent) == [path.name], "nothing is left of a run that is complete"


def house(seed: int, make_path: Callable[[], Path]) -> None:
    """All lives of one run, and what is in the file at the end."""
    rng = random.Random(seed)
    lines, profile, path = lines_of(rng), profile_of(rng), make_path()
    moments = [rng.choice([0.0, 0.3, 2.0, 10.0, 60.0]) for _ in range(rng.randint(0, 4))]
    for moment in [*moments, LAST]:
        out = one_life(lines, profile, path, moment, rng)
        if out is not None:
            assert out.tally.in_hand == out.tally.in_flight == 0, "no permit is left at the end"
            assert out.upstream["attempts"] == out.tally.attempts, "every request is an attempt of ours"
            assert out.exit in (Exit.OK, Exit.SOME_FAILED, Exit.TERMINATED, Exit.LOCAL_IO)
    assert out is not None
    assert out.exit in (Exit.OK, Exit.SOME_FAILED)
    ledger = look(str(path))
    proof = prove(out.intake, out.tally, ledger)
    assert (proof.missing, proof.double, proof.pending, proof.damaged, proof.other) == (0, 0, 0, 0, 0), proof
    assert proof.read == len(lines) == proof.ok + proof.failed + proof.duplicates
    assert sorted(key for key, _ in ledger.keys) == sorted(key for key, _ in expected(lines).keys)


def expected(lines: list[bytes]) -> Ledger:
    """What the input asks for, by reading it once against an upstream without faults."""
    calm = run_virtual(lines, Provider(load_profile("steady?rate=1000&words=1"), seed=0), Settings())
    ledger = Ledger()
    for result in calm.results:
        assert ledger.add(json.dumps(result).encode())
    return ledger


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32) if SEED is None else st.just(int(SEED)))
def test_every_line_has_exactly_one_result(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    house(seed, lambda: tmp_path_factory.mktemp("house") / "r.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_line_has_exactly_one_result_for_many_seeds(seed: int, tmp_path: Path) -> None:
    house(seed, lambda: tmp_path / "r.jsonl")
