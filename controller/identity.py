"""Which prompt a line is: its key, and whether it was there before.

A key is blake2b over the canonical JSON of [id, endpoint, request]; of a line without an id it is the hash of that
and of how often the same line came before. Any change to this, or to how `forms.py` normalises a request, makes old
results files forget what they hold: it would all be paid for again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b

from attrs import define, field, frozen

from controller.forms import Draft
from controller.keytable import KeyTable
from controller.lines import BadLine
from controller.outcome import Failed, Kind
from controller.records import Prompt, Result
from policies.contract import JSON

KEY_BYTES = 16
ID_BYTES = 8  # of the digest by which a results file's ids are remembered: a wrong match is a wrong remark, no more
LINE_BITS = 40  # of a place: source number << LINE_BITS | line, one integer instead of a tuple
PLACE_BYTES = 8
TIMES_BYTES = 5


@frozen(kw_only=True)
class Duplicate:
    """The same id with the same content: one prompt. first: where it stood, as "prompts.jsonl:3"."""

    key: str
    first: str


@frozen(kw_only=True)
class Conflict:
    """The same id with other content: an error under a key of its own."""

    result: Result


@frozen(kw_only=True)
class Unreadable:
    """A line that is no prompt: an error under a key of its own, so that a resumed run does not repeat it."""

    result: Result


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

Identified = Prompt | Duplicate | Conflict | Unreadable


@define(eq=False)
class Identities:
    """Gives every line its key. Costs O(1) and some 25 bytes of memory a line, 55 with an id.

    nonce: for live streams, where the same text in another run is new work. It is part of every key.
    """

    nonce: str = ""
    _sources: dict[str, int] = field(factory=dict, init=False)
    _times: KeyTable = field(init=False)  # content without an id -> how often it came
    _place_of_id: KeyTable = field(init=False)
    _place_of_key: KeyTable = field(init=False)  # keys of lines with an id

    _secret: bytes = field(default=b"", init=False)

    def __attrs_post_init__(self) -> None:
        if self.nonce:
            self._secret = blake2b(self.nonce.encode()).digest()
        self._times = KeyTable(KEY_BYTES, TIMES_BYTES)
        self._place_of_id, self._place_of_key = (KeyTable(KEY_BYTES, PLACE_BYTES) for _ in range(2))

    def identify(self, parsed: Draft | BadLine, source: str, line: int) -> Identified:
        """Call once for each line, in order: the third "x" without an id is the third in every run."""
        if isinstance(parsed, BadLine):
            key = self._numbered(["bad line", parsed.digest.hex()])
            return Unreadable(result=_refused(_bare_prompt(parsed, key, source, line), parsed.message))
        content: list[JSON] = [parsed.id, parsed.endpoint, parsed.request]
        if parsed.id is None:
            return _prompt(parsed, self._numbered(content), source, line)
        return self._with_id(parsed, self._digest(content), source, line)

    def keys(self) -> Iterator[bytes]:
        """Every key that was given to a line, once."""
        for digest, times in self._times:
            for occurrence in range(times):
                yield self._digest([digest.hex(), occurrence])
        for key, _ in self._place_of_key:
            yield key

    def _numbered(self, content: list[JSON]) -> bytes:
        digest = self._digest(content)
        occurrence = self._times.get(digest) or 0
        self._times.put(digest, occurrence + 1)
        return self._digest([digest.hex(), occurrence])

    def _with_id(self, draft: Draft, key: bytes, source: str, line: int) -> Prompt | Duplicate | Conflict:
        place = self._sources.setdefault(source, len(self._sources)) << LINE_BITS | line
        first = self._place_of_key.claim(key, place)
        if first is not None:
            return Duplicate(key=key.hex(), first=self._shown(first))
        prompt = _prompt(draft, key, source, line)
        first = self._place_of_id.claim(id_digest(draft.id, KEY_BYTES), place)
        if first is None:
            return prompt
        name = json.dumps(draft.id, ensure_ascii=False)[:100]
        before = f"id {name} was used before with other content at {self._shown(first)}"
        return Conflict(result=_refused(prompt, f"{before}; this is {self._shown(place)}"))

    def _shown(self, place: int) -> str:
        return f"{list(self._sources)[place >> LINE_BITS]}:{place & (1 << LINE_BITS) - 1}"

    def _digest(self, content: list[JSON]) -> bytes:
        # ASCII, so that half a surrogate pair is no trouble; JSON tells 1, 1.0, "1" and true apart.
        return blake2b(_CANONICAL.encode(content).encode(), digest_size=KEY_BYTES, key=self._secret).digest()


def id_digest(name: JSON, size: int = ID_BYTES) -> bytes:
    """By what an id is remembered within a run: its repr tells 1, 1.0, "1" and true apart."""
    return blake2b(repr(name).encode(), digest_size=size).digest()


def as_spooled(parsed: Draft | BadLine, key: bytes, source: str, line: int, fault: str | None) -> Prompt | Result:
    """A line that got its key in an earlier run. fault: what was wrong with it then."""
    if isinstance(parsed, BadLine):
        return _refused(_bare_prompt(parsed, key, source, line), parsed.message)
    prompt = _prompt(parsed, key, source, line)
    return prompt if fault is None else _refused(prompt, fault)


def _prompt(draft: Draft, key: bytes, source: str, line: int) -> Prompt:
    return Prompt(
        id=draft.id,
        key=key.hex(),
        source=source,
        line=line,
        request=draft.request,
        endpoint=draft.endpoint,
        metadata=draft.metadata,
        batch=draft.batch,
    )


def _bare_prompt(bad: BadLine, key: bytes, source: str, line: int) -> Prompt:
    return Prompt(id=bad.id, key=key.hex(), source=source, line=line, request={}, batch=bad.batch)


def _refused(prompt: Prompt, message: str) -> Result:
    return Result(prompt=prompt, error=Failed(kind=Kind.INPUT, message=message, sent=False))
