"""The whole daemon in virtual time over a real wire: httpcore at one end, bytes or the simulated upstream at the other.

Connections are memory streams, so that an hour passes in a moment and every byte is a test's own. What only a socket
can do (a reset, a proxy, a descriptor) is tested with sockets.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import httpcore
import trio
import trio.testing
from attrs import define, field, frozen
from raw_server import Peer
from wire_answers import Say

from controller.budget import Price
from controller.daemon import Parts, serve
from controller.decisions import DecisionLog
from controller.dialects.table import dialect_for
from controller.gates import Gates, limiter_maker
from controller.identity import Identities
from controller.intake import Intake, read_prompts
from controller.records import Prompt, Result, dump_result
from controller.settings import Settings
from controller.telemetry import Exit, Stop, Tally
from controller.transport import Pool
from controller.upstream import Upstream
from policies.contract import JSON
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.server import serve_stream
from simulations.virtual import make_deterministic, memory_source

WALL = 1_700_000_000.0  # seconds since the epoch at the start of a run
MODEL: Mapping[str, JSON] = {"model": "m"}
DIALECTS = ("openai", "responses", "anthropic", "gemini")


@frozen(kw_only=True)
class Wired:
    """How it ended. requests: as they arrived, with the instant; statistics: of the simulated upstream, if it was."""

    exit: Exit
    stop: Stop
    results: list[dict[str, JSON]]
    written_at: list[float]  # instants, one for each result
    requests: list[tuple[float, bytes]]
    decisions: list[dict[str, JSON]]
    tally: Tally
    pool: Pool
    statistics: dict[str, JSON]
    elapsed: float

    @property
    def result(self) -> dict[str, JSON]:
        """The only one."""
        assert len(self.results) == 1, self.results
        return self.results[0]

    @property
    def texts(self) -> dict[str, JSON]:
        """The answers by id."""
        return {str(result["id"]): result["text"] for result in self.results if result["status"] == "ok"}

    @property
    def gaps(self) -> list[float]:
        """Seconds between one request and the next."""
        instants = [instant for instant, _ in self.requests]
        return [later - earlier for earlier, later in pairwise(instants)]


def prompts(count: int) -> list[bytes]:
    """Input lines with ids 0, 1, ...."""
    return [json.dumps({"id": n, "prompt": f"prompt {n}"}).encode() for n in range(count)]


def wired(
    answer: str | Say | Sequence[Say],
    lines: int | Iterable[bytes] = 1,
    *,
    dialect: str = "openai",
    wall_clock: Callable[[], float] = lambda: WALL + trio.current_time(),
    price: Price = lambda _, __: 0.0,
    defaults: Mapping[str, JSON] = MODEL,
    **changed: object,
) -> Wired:
    """Run over `lines`. answer: a profile; or bytes for every request, or for each one in turn, the last for ever."""
    settings = Settings(**changed)  # type: ignore[arg-type]  # mypy can't follow the keywords
    make_deterministic(settings.seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    given = prompts(lines) if isinstance(lines, int) else lines
    provider = Provider(load_profile(answer), seed=settings.seed) if isinstance(answer, str) else None
    says = [] if isinstance(answer, str) else [answer] if isinstance(answer, bytes) or callable(answer) else answer
    return trio.run(_Wire(given, provider, says, dialect, wall_clock, settings, price, dict(defaults)).run, clock=clock)


@define(eq=False)
class _Wire(httpcore.AsyncNetworkBackend):
    """Both ends. Its connections are served in a nursery of its own."""

    lines: Iterable[bytes]
    provider: Provider | None
    says: Sequence[Say]
    dialect: str
    wall_clock: Callable[[], float]
    settings: Settings
    price: Price
    defaults: dict[str, JSON]
    requests: list[tuple[float, bytes]] = field(factory=list)
    pool: Pool = field(init=False)
    _nursery: trio.Nursery | None = None

    async def run(self) -> Wired:
        self.pool = Pool(network_backend=self)
        written: list[bytes] = []
        written_at: list[float] = []
        decisions: list[dict[str, JSON]] = []
        tally, stop, began_at = Tally(), Stop(), trio.current_time()
        log = DecisionLog(lambda line: decisions.append(json.loads(line)), began_at)
        async with trio.open_nursery() as self._nursery:
            async with self._upstream() as upstream:
                parts = Parts(
                    settings=self.settings,
                    read=self._read,
                    write=_writer(written, written_at, with_body=self.settings.keep_response),
                    upstream=upstream,
                    gates=Gates(limiter_maker(self.settings), log),
                    defaults=self.defaults,
                    price=self.price,
                    tally=tally,
                    stop=stop,
                )
                code = await serve(parts)
                ended_at = trio.current_time()
            self._nursery.cancel_scope.cancel()
        return Wired(
            exit=code,
            stop=stop,
            results=[json.loads(line) for line in written],
            written_at=written_at,
            requests=self.requests,
            decisions=decisions,
            tally=tally,
            pool=self.pool,
            statistics=self.provider.statistics() if self.provider else {},
            elapsed=ended_at - began_at,
        )

    def _upstream(self) -> Upstream:
        return Upstream(
            transport=self.pool,
            base_url="http://sim/v1beta" if self.dialect == "gemini" else "http://sim/v1",
            dialect=dialect_for(self.dialect, ""),
            timeouts=self.settings.timeouts,
            wall_clock=self.wall_clock,
        )

    async def _read(
        self, accept_prompt: Callable[[Prompt], Awaitable[None]], accept_result: Callable[[Result], Awaitable[None]]
    ) -> None:
        intake = Intake(identities=Identities())
        await read_prompts([memory_source(self.lines)], intake, accept_prompt, accept_result)

    async def connect_tcp(self, *args: object, **kwargs: object) -> httpcore.AsyncNetworkStream:
        del args, kwargs
        await trio.lowlevel.checkpoint()
        ours, theirs = trio.testing.memory_stream_pair()
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, theirs)
        return _Memory(ours)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        if self.provider is not None:
            await serve_stream(stream, self.provider)
            return
        peer = Peer(stream, 0)
        while (request := await peer.request()) is not None:
            say = self.says[min(len(self.requests), len(self.says) - 1)]
            self.requests.append((trio.current_time(), request))
            if isinstance(say, bytes):
                await peer.send(say)
            else:
                await say(peer)


def _writer(
    written: list[bytes], written_at: list[float], *, with_body: bool
) -> Callable[[list[Result]], Awaitable[None]]:
    async def write(results: list[Result]) -> None:
        await trio.lowlevel.checkpoint()
        written.extend(dump_result(result, with_body=with_body) for result in results)
        written_at.extend(trio.current_time() for _ in results)

    return write


@define(eq=False)
class _Memory(httpcore.AsyncNetworkStream):
    """A memory stream as httpcore wants it."""

    stream: trio.abc.Stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del timeout  # the product's own clocks are what is tested
        try:
            return bytes(await self.stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        del timeout
        try:
            await self.stream.send_all(buffer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)

    def get_extra_info(self, info: str) -> object:
        return False if info == "is_readable" else None
