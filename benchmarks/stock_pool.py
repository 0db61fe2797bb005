"""httpx's own pool against ours, side by side in one run: why controller/transport.py exists.

    python benchmarks/stock_pool.py

Three faults of httpcore 1.0.9's pool (https://github.com/encode/httpcore/issues/1093 and what else stands in
its `_assign_requests_to_connections`): connections are not reused under httpx's default limits; cancelling requests
while connections open leaks slots until every request times out; each call costs CPU in proportion to the connections.
"""

from __future__ import annotations

import random
import ssl
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import trio
import trustme

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from raw_server import OK, Peer, RawServer, answer_ok

from controller.transport import Pool

ROUNDS = 3
AUTHORITY = trustme.CA()
Make = Callable[[], httpx.AsyncBaseTransport]


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


POOLS: dict[str, Make] = {
    "httpx": lambda: httpx.AsyncHTTPTransport(
        verify=_context(), limits=httpx.Limits(max_connections=100, max_keepalive_connections=20)
    ),
    "httpx, no limits": lambda: httpx.AsyncHTTPTransport(verify=_context(), limits=httpx.Limits()),
    "httpx, 10 connections": lambda: httpx.AsyncHTTPTransport(
        verify=_context(), limits=httpx.Limits(max_connections=10, max_keepalive_connections=20)
    ),
    "ours": lambda: Pool(tls_context=_context()),
}


async def _ask(transport: httpx.AsyncBaseTransport, url: str) -> None:
    request = httpx.Request("POST", url, content=b"x", extensions={"timeout": {"pool": 5.0}})
    response = await transport.handle_async_request(request)
    await response.aread()


async def connections(make: Make) -> float:
    """Opened for 640 requests of 64 workers; 64 would be the ideal."""
    async with trio.open_nursery() as nursery, make() as transport:
        server = await RawServer(answer_ok).start(nursery)

        async def ten() -> None:
            for _ in range(10):
                await _ask(transport, f"http://127.0.0.1:{server.port}/")

        async with trio.open_nursery() as workers:
            for _ in range(64):
                workers.start_soon(ten)
        nursery.cancel_scope.cancel()
    return server.accepted


async def usable_after_cancellations(make: Make) -> float:
    """Of 10 requests after 2 s of cancellations over TLS, how many are answered."""
    answered = 0
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("localhost").configure_cert(tls)
    async with trio.open_nursery() as nursery, make() as transport:
        server = await RawServer(answer_ok, tls=tls).start(nursery)
        url, rng = f"https://localhost:{server.port}/", random.Random(11)

        async def give_up_early() -> None:
            while True:
                with trio.move_on_after(rng.uniform(0, 0.02)):
                    await _ask(transport, url)

        with trio.move_on_after(2):
            async with trio.open_nursery() as tasks:
                for _ in range(20):
                    tasks.start_soon(give_up_early)
        for _ in range(10):
            try:
                await _ask(transport, url)
            except httpx.PoolTimeout:
                break  # the others would wait as long
            answered += 1
        nursery.cancel_scope.cancel()
    return answered


async def cpu_per_request(make: Make) -> float:
    """Milliseconds of CPU for a request among 200 at a time, ten times over; the server's share is included."""

    async def thoughtful(peer: Peer) -> None:
        while await peer.request() is not None:
            await trio.sleep(0.5)
            await peer.send(OK)

    async with trio.open_nursery() as nursery, make() as transport:
        server = await RawServer(thoughtful).start(nursery)

        async def ten() -> None:
            for _ in range(10):
                await _ask(transport, f"http://127.0.0.1:{server.port}/")

        began = time.process_time()
        async with trio.open_nursery() as workers:
            for _ in range(200):
                workers.start_soon(ten)
        spent = time.process_time() - began
        nursery.cancel_scope.cancel()
    return 1000 * spent / 2000


def main() -> None:
    """Interleave the pools, repeat, print median and spread."""
    plans = {
        "connections for 640 requests": (connections, list(POOLS)),
        "of 10 answered after cancellations": (usable_after_cancellations, ["httpx, 10 connections", "ours"]),
        "ms CPU a request, 200 at a time": (cpu_per_request, ["httpx, no limits", "ours"]),
    }
    for title, (measure, names) in plans.items():
        figures: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(ROUNDS):
            for name in names:
                figures[name].append(trio.run(measure, POOLS[name]))
        print(title)
        for name, values in figures.items():
            print(f"  {name:22} median {statistics.median(values):7.1f}   {min(values):.1f} .. {max(values):.1f}")


if __name__ == "__main__":
    main()
