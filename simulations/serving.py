"""A profile by its spec, as a transport inside a run, and served over HTTP by the command `upstream`."""

from __future__ import annotations

import signal
import time
from functools import partial

import click
import trio

from controller.stderr import say
from controller.telemetry import Exit
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.server import serve
from simulations.transport import SimulatedTransport


def simulated(spec: str, seed: int) -> tuple[SimulatedTransport, str]:
    """The upstream of `--base-url sim:SPEC`, and the dialect it is asked in; ValueError for a spec that is none."""
    provider = _provider(spec, seed)
    return SimulatedTransport(provider), provider.profile.dialect


def _provider(spec: str, seed: int) -> Provider:
    """Its calendar windows begin where the wall clock's do: its own time begins now."""
    return Provider(load_profile(spec), seed=seed, calendar_offset=-time.time())


@click.command()
@click.argument("profile")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any free one")
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--seed", type=click.INT, default=0, show_default=True, help="of latencies, faults and texts")
def upstream(profile: str, port: int, host: str, seed: int) -> int:
    """Serve the simulated upstream PROFILE (such as "steady?rate=200") over HTTP; GET /_sim/statistics tells all."""
    try:
        provider = _provider(profile, seed)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    try:
        trio.run(_serve, provider, host, port, profile)
    except BaseExceptionGroup as group:
        trouble: BaseException | None = group.subgroup(OSError)
        if trouble is None:
            raise
        while isinstance(trouble, BaseExceptionGroup):
            trouble = trouble.exceptions[0]
        raise click.ClickException(f"cannot listen on {host}:{port}: {trouble}") from group
    return Exit.OK


async def _serve(provider: Provider, host: str, port: int, profile: str) -> None:
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(partial(serve, provider, host=host, port=port))
        say(f"upstream {profile} on http://{host}:{bound}/v1")
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break
