"""Signals, and what SIGHUP reads again while a run goes on: ceilings, the cap in flight, policy options, the key.

Nothing is dropped: streams go on, what was learned stays, and what can't be kept is refused as a whole, in one line.
All other settings stay as they were until the next start, and the user is told which those are.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import trio
from attrs import define, evolve, fields

from controller.crew import Crew
from controller.descriptors import make_room
from controller.gates import Gates, Renewal
from controller.keeper import Keeper
from controller.settings import Settings, flag_of
from controller.stderr import has_terminal
from controller.supervisor import Supervisor
from controller.telemetry import Exit, Stop

LIVE = frozenset(
    {
        *("requests_per_minute", "tokens_per_minute", "input_tokens_per_minute", "output_tokens_per_minute"),
        *("max_in_flight", "policy_option"),
    }
)


@define(eq=False)
class Reload:
    """reread: what a start would use now; ValueError for what it could not.

    check_key: the same for the key. renew_key: whether it is another.
    """

    settings: Settings
    reread: Callable[[], Settings]
    gates: Gates
    keeper: Keeper
    crew: Crew
    check_key: Callable[[], object]
    renew_key: Callable[[], bool]
    say: Callable[[str], None]

    def now(self) -> None:
        """Read and apply them; said in one line, or one more for what has to wait for a restart."""
        old = self.settings
        try:
            wanted = self.reread()
            changed = [each.name for each in fields(Settings) if getattr(wanted, each.name) != getattr(old, each.name)]
            live = [name for name in changed if name in LIVE]
            fresh = evolve(old, **{name: getattr(wanted, name) for name in live})
            renewal = Renewal.of(fresh, self.keeper.meters.charge, options_changed="policy_option" in live)
            make_room(fresh.max_in_flight)
        except ValueError as error:
            self.say(f"settings were not read again, all stays as it was: {error}")
            return
        self.settings = fresh
        self.gates.renew(renewal, trio.current_time())
        self.keeper.ceilings = fresh.ceilings
        self.crew.grow(fresh.max_in_flight)
        said = [f"{flag_of(name)} {_shown(getattr(fresh, name))}" for name in live]
        said += self._new_key()
        self.say(f"settings read again: {', '.join(said) or 'nothing new'}")
        if waiting := [flag_of(name) for name in changed if name not in LIVE]:
            self.say(f"changed too, but only a restart can apply it: {', '.join(waiting)}")

    def _new_key(self) -> list[str]:
        """Take the key over if there is one; what to say of it."""
        try:
            self.check_key()
        except ValueError as error:
            return [f"the key stays as it was: {error}"]
        return ["another key"] if self.renew_key() else []


def _shown(value: object) -> str:
    return "none" if value is None else " ".join(value) if isinstance(value, tuple) else str(value)


def stay() -> None:
    """Until a run listens, SIGUSR1 and SIGHUP wait: a million results may have to be read before.

    A terminal that is closed ends it, as it ends others.
    """
    waiting = {signal.SIGUSR1}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and not has_terminal():
        waiting.add(signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, waiting)


async def listen(stop: Stop, reload: Reload, supervisor: Supervisor, tell: Callable[[], None]) -> None:
    """First SIGINT or SIGTERM: stop and drain. Second: stop at once. SIGUSR1: tell. Never returns.

    SIGHUP reads settings again. With a terminal it says that this was closed, and stops as SIGTERM does.
    """
    deaf = has_terminal()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGHUP})  # what waited comes now
        async for number in signals:
            if number == signal.SIGUSR1:
                tell()
            elif number == signal.SIGHUP and not deaf:
                if not stop.asked.is_set():  # to be ready again would take back that it stops
                    supervisor.reloading()
                reload.now()
                if not stop.asked.is_set():
                    supervisor.tell("READY=1")
            else:
                if stop.asked.is_set():
                    stop.at_once.set()
                stop.ask(Exit(128 + number), f"{signal.Signals(number).name}")
