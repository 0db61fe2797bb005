"""The stream of a run: what a consumer reads, however slowly, is what was answered; in virtual time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
import trio
import trio.testing
from attrs import define, field
from consumer import Consumer
from emitting import emit, lines_of, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.dialects.openai_chat import OpenAIChat
from controller.emission import Restart
from controller.journal import Append, Journal
from controller.live import Live
from controller.outcome import Answer, Delta, Failed, Kind
from controller.records import Prompt, Result
from controller.sse import Event, Splitter
from controller.telemetry import Exit, Stop
from policies.contract import JSON
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.transport import SimulatedTransport

# -- a fold's deltas are its text

any_text = st.text(st.characters() | st.characters(categories=["Cs"]) | st.sampled_from("\ud83d\ude00"), max_size=20)


@given(st.lists(st.tuples(any_text, any_text, st.integers(0, 1), st.booleans()), max_size=8))
@settings(max_examples=150)
def test_the_deltas_of_each_choice_are_its_text_however_it_is_cut(
    pieces: list[tuple[str, str, int, bool]],
) -> None:
    folding, heard = OpenAIChat().fold(), list[Delta]()
    for content, reasoning, index, ask in pieces:
        delta: JSON = {"content": content, "reasoning_content": reasoning}
        folding.feed(Event(data=json.dumps({"choices": [{"index": index, "delta": delta}]})))
        heard += folding.fresh() if ask else []
    ends: JSON = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in (0, 1)]
    folding.feed(Event(data=json.dumps({"choices": ends})))
    folding.feed(Event(data="[DONE]"))
    heard += folding.fresh()
    answer = folding.end()
    assert isinstance(answer, Answer)
    assert text_of(heard, 0) == answer.text
    assert text_of(heard, 0, reasoning=True) == answer.reasoning
    second = answer.body["choices"]
    assert isinstance(second, list)
    assert isinstance(second[1], dict)
    message = second[1].get("message")
    assert text_of(heard, 1) == (message.get("content") or "" if isinstance(message, dict) else "")
    assert all(delta.text.encode() for delta in heard), "none is empty, all can be encoded"
    assert folding.fresh() == []


def text_of(heard: list[Delta], index: int, *, reasoning: bool = False) -> str:
    return "".join(delta.text for delta in heard if (delta.index, delta.reasoning) == (index, reasoning))


def test_half_a_character_waits_for_its_other_half() -> None:
    folding = OpenAIChat().fold()
    folding.feed(Event(data='{"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}'))
    assert folding.fresh() == [Delta(0, "a")]
    folding.feed(Event(data='{"choices":[{"index":0,"delta":{"content":"\\ude00"}}]}'))
    assert folding.fresh() == [Delta(0, "\U0001f600")]


@pytest.mark.parametrize("delta", [{}, {"content": ""}, {"content": None}, {"role": "assistant"}, {"tool_calls": []}])
def test_a_chunk_without_text_gives_no_delta(delta: JSON) -> None:
    folding = OpenAIChat().fold()
    folding.feed(Event(data=json.dumps({"choices": [{"index": 0, "delta": delta}]})))
    assert folding.fresh() == []


# -- the buffer: whatever is told and whenever it is read, the consumer ends with the same text

PROMPT = prompt(7)


async def read_on(live: Live) -> None:
    """The consumer gets all that waits."""
    await live._write(Stop())


@given(st.lists(st.sampled_from(["say", "say", "think", "read", "cut", "go on", "start over"]), max_size=30))
@settings(max_examples=150, deadline=None)
def test_a_consumer_of_any_pace_ends_with_the_text_of_the_result(story: list[str]) -> None:
    out: list[bytes] = []

    async def main() -> None:
        live = Live(journal=Journal(name="m", append=append_to(out)), sse=False, sole=True, backlog=0)
        kept, said = "", ""
        for number, step in enumerate([*story, "say"]):
            match step:
                case "say":
                    live.hear(PROMPT, [Delta(0, f"{number} "), Delta(0, "x")])
                    said += f"{number} x"
                case "think":
                    live.hear(PROMPT, [Delta(0, "hm", reasoning=True)])
                case "read" if live._waiting:
                    await read_on(live)
                case "cut":  # an attempt broke off: its text is void
                    live.restart(PROMPT, Restart(number, len(kept)))
                    said = ""
                case "go on":  # an attempt broke off and is continued
                    live.keep(PROMPT)
                    kept, said = kept + said, ""
                case "start over":
                    live.restart(PROMPT, Restart(number))
                    kept, said = "", ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.run, Stop())
            await live.deliver([Result(prompt=PROMPT, answer=answer(kept + said))])
            nursery.cancel_scope.cancel()

    trio.run(main)
    consumer = Consumer().read(lines_of(b"".join(out)))
    assert consumer.agrees()
    assert len(consumer.results) == 1


def answer(text: str) -> Answer:
    return Answer(text=text, finish_reason="stop", model="m", usage=None, body={})


def append_to(out: list[bytes]) -> Append:
    async def append(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        out.append(data)

    return append


async def test_what_was_not_read_before_a_restart_is_never_written(nursery: trio.Nursery) -> None:
    out: list[bytes] = []
    live = Live(journal=Journal(name="m", append=append_to(out)), sse=False, sole=True, backlog=0)
    live.hear(PROMPT, [Delta(0, "void")] * 1000)
    live.restart(PROMPT, Restart(2))
    live.hear(PROMPT, [Delta(0, "a"), Delta(0, "b"), Delta(0, "c", reasoning=True), Delta(1, "d")])
    await read_on(live)
    shown = [json.loads(line) for line in lines_of(out[0])]
    names = {"id": 7, "key": PROMPT.key}
    assert shown == [
        names | {"restart": True, "attempt": 2, "kept": 0},
        names | {"delta": "ab", "index": 0},
        names | {"reasoning": "c", "index": 0},
        names | {"delta": "d", "index": 1},
    ]


async def test_a_batch_line_is_named_as_in_its_result(nursery: trio.Nursery) -> None:
    out: list[bytes] = []
    live = Live(journal=Journal(name="m", append=append_to(out)), sse=False, sole=True, backlog=0)
    batch = Prompt(id="b-1", key="a" * 32, source="-", line=1, request={}, batch=True)
    live.hear(batch, [Delta(0, "x")])
    await read_on(live)
    line = {"id": "batch_req_" + "a" * 32, "custom_id": "b-1", "key": "a" * 32, "delta": "x", "index": 0}
    assert json.loads(out[0]) == line


async def test_events_carry_a_running_number_and_silence_is_filled_with_comments(
    autojump_clock: trio.testing.MockClock,
) -> None:
    out: list[bytes] = []
    live = Live(journal=Journal(name="m", append=append_to(out)), sse=True, sole=True, backlog=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live.run, Stop())
        await trio.sleep(31)
        assert out == [b": keep-alive\n\n"] * 2
        live.hear(PROMPT, [Delta(0, "a\r\nb\u2028\n\nevent: x")])
        await trio.sleep(14)
        live.restart(PROMPT, Restart(2))
        await live.deliver([Result(prompt=PROMPT, error=Failed(kind=Kind.NETWORK, message="no"))])
        await trio.sleep(14)
        assert len(out) == 4, "15 s without an event, not 15 s by the clock"
        nursery.cancel_scope.cancel()
    stream = b"".join(out)
    assert b"id: 1\n" in stream
    assert b"id: 3\n" in stream
    events = Splitter().feed(stream)
    assert [event.name for event in events] == ["delta", "restart", "result"]
    assert json.loads(events[0].data)["delta"] == "a\r\nb\u2028\n\nevent: x"
    assert json.loads(events[2].data)["status"] == "error"


# -- the daemon: one seed of faults after another


@pytest.mark.parametrize("to_file", [False, True])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=8, deadline=None)
def test_every_answer_is_the_text_that_was_streamed_before_it(to_file: bool, seed: int) -> None:
    faulty = "flaky?words=8&rate=20&error_share=0.1&reset_share=0.2&truncate_share=0.2&stall_share=0.05"
    provider = Provider(load_profile(faulty), seed=seed)
    out: list[bytes] = []
    paces = iter(range(10**9))

    async def consume(data: bytes) -> None:
        await trio.sleep((seed + next(paces)) % 5 * 0.7)  # at times faster than the upstream, at times slower
        out.append(data)

    asked = [prompt(n) for n in range(15)]
    done = emit(asked, SimulatedTransport(provider), consume, to_file=to_file, seed=seed, max_failures=50)
    consumer = Consumer().read(lines_of(b"".join(out)))
    assert (done.exit, len(consumer.results)) == (Exit.OK, 15)
    assert consumer.agrees()
    assert done.tally.attempts == provider.statistics()["attempts"]
    assert len(done.filed) == 15 * to_file
    assert all(b'"status"' in line for line in done.filed), "no line of the stream is in the results file"


def test_a_restart_is_told_where_text_was_and_only_there() -> None:
    out: list[bytes] = []
    transport = Played([[b"", 500], [chunk("Hal"), 200], [], [chunk("Hal"), chunk("lo"), DONE, 200]])
    done = emit([prompt(0)], transport, append_to(out))
    consumer = Consumer().read(lines_of(b"".join(out)))
    names = {"id": 0, "key": prompt(0).key}
    assert consumer.restarts == [names | {"restart": True, "attempt": 3, "kept": 0}]
    assert (done.exit, consumer.texts) == (Exit.OK, {prompt(0).key: "Hallo"})


def test_an_answer_that_is_not_streamed_is_only_a_result() -> None:
    out: list[bytes] = []
    provider = Provider(load_profile("steady?words=3"), seed=1)
    vector = Prompt(id=2, key="2" * 32, source="-", line=2, request={"model": "m", "input": "x"}, endpoint="embeddings")
    emit([prompt(1, stream=False), vector], SimulatedTransport(provider), append_to(out))
    consumer = Consumer().read(lines_of(b"".join(out)))
    assert (consumer.deltas, len(consumer.results)) == (0, 2)


# -- slow and broken consumers


def chunk(text: str) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


DONE = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
Answering = list[bytes | float | int]  # bytes to send, seconds to wait, the status


@define(eq=False)
class Played(httpx.AsyncBaseTransport):
    """Gives one script an attempt, the last one for ever."""

    scripts: list[Answering]
    attempts: int = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        del request
        await trio.lowlevel.checkpoint()
        script = self.scripts[min(self.attempts, len(self.scripts) - 1)]
        self.attempts += 1
        status = next((step for step in script if isinstance(step, int)), 200)
        return httpx.Response(status, headers={"content-type": "text/event-stream"}, stream=Body(script))


@define(eq=False)
class Body(httpx.AsyncByteStream):
    """The body of a script."""

    script: Answering = field(factory=list)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self.script:
            if isinstance(step, float):
                await trio.sleep(step)
            elif isinstance(step, bytes):
                yield step


def test_a_slow_consumer_gets_longer_deltas_and_runs_down_no_clock() -> None:
    """The answer takes 600 s, the consumer 200 s for each write; the clocks are 60 s of silence and 900 s in all."""
    script: Answering = [1.0, chunk("word ")] * 600
    out: list[bytes] = []

    async def consume(data: bytes) -> None:
        await trio.sleep(200)
        out.append(data)

    done = emit([prompt(0)], Played([[*script, DONE]]), consume)
    consumer = Consumer().read(lines_of(b"".join(out)))
    assert (done.exit, done.tally.attempts) == (Exit.OK, 1)
    assert consumer.texts == {prompt(0).key: "word " * 600}
    assert consumer.agrees()
    assert 2 <= consumer.deltas <= 5


@pytest.mark.parametrize("to_file", [False, True])
def test_a_consumer_that_does_not_read_stops_new_prompts_and_not_those_under_way(to_file: bool) -> None:
    transport, out, asked = Played([[chunk("a"), 1.0, chunk("b"), DONE]]), list[bytes](), list[int]()

    async def consume(data: bytes) -> None:
        if not out:
            await trio.sleep(5000)
            asked.append(transport.attempts)
        out.append(data)

    done = emit([prompt(n) for n in range(200)], transport, consume, to_file=to_file, max_in_flight=2)
    assert 2 <= asked[0] <= 12, "as many as may be unread, of 200"
    assert (done.exit, done.tally.ok) == (Exit.OK, 200)
    assert Consumer().read(lines_of(b"".join(out))).agrees()


@pytest.mark.parametrize("to_file", [False, True])
def test_a_consumer_that_goes_stops_the_run_and_a_file_still_gets_what_was_paid(to_file: bool) -> None:
    transport = Played([[chunk("a"), 5.0, chunk("b"), DONE]])

    async def consume(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        raise BrokenPipeError(32, "Broken pipe")

    done = emit([prompt(n) for n in range(200)], transport, consume, to_file=to_file, max_in_flight=4)
    assert done.exit is Exit.LOCAL_IO
    assert "Broken pipe" in str(done.stop.reason)
    assert transport.attempts < 20
    assert len(done.filed) == (transport.attempts if to_file else 0)
    assert done.elapsed < (6 if to_file else 1), "nothing more is paid for that can't be kept"


def test_a_stop_while_nobody_reads_loses_no_answer_that_belongs_in_the_file() -> None:
    transport = Played([[chunk("a"), 1.0, chunk("b"), DONE]])

    async def consume(data: bytes) -> None:
        await trio.sleep_forever()

    asked = [prompt(n) for n in range(200)]
    done = emit(asked, transport, consume, to_file=True, max_in_flight=2, stop_at=1000.0)
    assert done.exit is Exit.TERMINATED
    assert len(done.filed) == transport.attempts < 20
