"""Answers of an upstream, byte by byte, as a test wants them on the wire."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

from raw_server import Peer

from policies.contract import JSON

Say = bytes | Callable[[Peer], Awaitable[None]]  # one answer, from its status line on


def response(
    *pieces: bytes,
    status: int = 200,
    media: str = "text/event-stream",
    ended: bool = True,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A chunked response, each piece an HTTP chunk of its own; without its last chunk if not ended."""
    lines = [f"HTTP/1.1 {status} Fine", f"content-type: {media}", "transfer-encoding: chunked"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in (headers or {}).items()]
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece)
    return "\r\n".join([*lines, "", ""]).encode() + body + (b"0\r\n\r\n" if ended else b"")


def closing(answer: bytes) -> Say:
    """The answer, and then the end of the connection."""

    async def give(peer: Peer) -> None:
        await peer.send(answer)
        await peer.stream.aclose()

    return give


def error(document: JSON, status: int, **headers: str) -> bytes:
    """An error in JSON."""
    body = json.dumps(document).encode()
    return response(body, status=status, media="application/json", headers=headers)


def event(document: JSON, name: str = "") -> bytes:
    """One event of a stream."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(document).encode() + b"\n\n"


def said(text: str, dialect: str = "openai") -> list[bytes]:
    """The events of a whole answer with this text."""
    match dialect:
        case "anthropic":
            return [
                event({"type": "message_start", "message": {"id": "x", "model": "m", "content": []}}, "message_start"),
                event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}),
                event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}),
                event({"type": "message_stop"}, "message_stop"),
            ]
        case "gemini":
            content: JSON = {"role": "model", "parts": [{"text": text}]}
            usage: JSON = {"promptTokenCount": 1, "candidatesTokenCount": 1}
            return [
                event({"candidates": [{"content": content}]}),
                event({"candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}], "usageMetadata": usage}),
            ]
        case "responses":
            output: JSON = [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
            return [
                event({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": text}),
                event({"type": "response.completed", "response": {"status": "completed", "output": output}}),
            ]
        case _:
            return [chunk(text), chunk(finish="stop"), DONE]


def chunk(content: str | None = None, finish: str | None = None, **more: JSON) -> bytes:
    """One chat.completion.chunk."""
    delta: JSON = {} if content is None else {"content": content}
    return event({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


DONE = b"data: [DONE]\n\n"
FINE = response(*said("fine"))
