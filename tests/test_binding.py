"""Which of several dimensions binds, and how much of a learned limit is in use."""

from __future__ import annotations

from itertools import pairwise

import pytest

from controller.binding import BRIEF, LONGEST_UNPROVED, MEMORY, Binding

PERIOD = 60.0


def test_one_that_has_just_begun_to_bind_proves_nothing_for_a_period() -> None:
    binding = Binding()
    assert binding.binds(0.0, PERIOD, is_learned=True)
    assert binding.idles(10.0)
    assert not binding.binds(11.0, PERIOD, is_learned=True)
    assert binding.binds(10.0 + PERIOD, PERIOD, is_learned=True)


def test_as_long_as_no_limit_is_learned_everything_proves_something() -> None:
    binding = Binding()
    assert binding.idles(0.0)
    assert binding.binds(1.0, PERIOD, is_learned=False)


def test_where_limits_take_turns_a_rate_is_proved_now_and_then_all_the_same() -> None:
    binding, proofs = Binding(), []
    for turn in range(100):
        now = 10.0 * turn
        binding.idles(now)
        if binding.binds(now + 5.0, PERIOD, is_learned=True):
            proofs.append(now)
    assert [later - earlier for earlier, later in pairwise(proofs)] == [LONGEST_UNPROVED] * 3


def test_one_that_held_an_attempt_up_just_now_is_not_idle() -> None:
    binding = Binding()
    binding.binds(10.0, PERIOD, is_learned=True)
    assert not binding.idles(10.0 + BRIEF / 2)
    assert not binding.was_idle(10.0 + BRIEF / 2, PERIOD)
    assert binding.idles(10.0 + BRIEF)
    assert binding.was_idle(10.0 + BRIEF, PERIOD)


def test_sending_at_the_limit_for_long_uses_all_of_it() -> None:
    binding = Binding()
    for tick in range(int(10 * MEMORY * 10)):
        binding.add(0.5, tick / 10)  # 5 units/s
    now = 10 * MEMORY
    assert binding.share(5.0, now) == pytest.approx(1.0, rel=0.01)
    assert binding.share(10.0, now) == pytest.approx(0.5, rel=0.01)
    assert binding.share(None, now) is None
    assert binding.share(5.0, now + 5 * MEMORY) == pytest.approx(0.0, abs=0.01)
