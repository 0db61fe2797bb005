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
_ONCE = (1).to_bytes(TIMES_BYTES, "big")


@frozen(kw_only=True)
class Duplicate:
    """The same id with the same content: one prompt. first: where it stood, as "prompts.jsonl:3"."""

    key: bytes
    first: str


@frozen(kw_only=True)
class Conflict:
    """The same id with other content: an error under a key of its own. message: names both places."""

    key: bytes
    message: str


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)

Identified = bytes | Duplicate | Conflict  # bytes: a key that is new in this run


@define(eq=False)
class Identities:
    """Gives every line its key. Costs O(1) and some 25 bytes of memory a line, 45 with an id.

    nonce: for live streams, where the same text in another run is new work. It is part of every key.
    """

    nonce: str = ""
    _sources: dict[str, int] = field(factory=dict, init=False)
    _times: KeyTable = field(init=False)  # content without an id -> how often it came
    _by_id: KeyTable = field(init=False)  # id -> the first key under it, and its place
    _conflicts: KeyTable = field(init=False)  # the other keys under these ids -> their places
    _secret: bytes = field(default=b"", init=False)

    def __attrs_post_init__(self) -> None:
        if self.nonce:
            self._secret = blake2b(self.nonce.encode()).digest()
        self._times = KeyTable(KEY_BYTES, TIMES_BYTES)
        self._by_id = KeyTable(KEY_BYTES, KEY_BYTES + PLACE_BYTES)
        self._conflicts = KeyTable(KEY_BYTES, PLACE_BYTES)

    def identify(self, parsed: Draft | BadLine, source: str, line: int) -> Identified:
        """Call once for each line, in order: the third "x" without an id is the third in every run.

        A bad line has a key too, so that a resumed run does not repeat it.
        """
        if isinstance(parsed, BadLine):
            return self._nth(self._digest(["bad line", parsed.digest.hex()]))
        key = self._digest([parsed.id, parsed.endpoint, parsed.request])
        if parsed.id is None:
            return self._nth(key)
        place = self._sources.setdefault(source, len(self._sources)) << LINE_BITS | line
        packed = place.to_bytes(PLACE_BYTES, "big")
        before = self._by_id.claim(id_digest(parsed.id, KEY_BYTES), key + packed)
        if before is None:
            return key
        first = before[KEY_BYTES:] if before.startswith(key) else self._conflicts.claim(key, packed)
        if first is not None:
            return Duplicate(key=key, first=self._shown(first))
        name = json.dumps(parsed.id, ensure_ascii=False)[:100]
        words = f"id {name} was used before with other content at {self._shown(before[KEY_BYTES:])}"
        return Conflict(key=key, message=f"{words}; this is {self._shown(packed)}")

    def keys(self) -> Iterator[bytes]:
        """Every key that was given to a line, once."""
        for digest, times in self._times:
            for occurrence in range(int.from_bytes(times, "big")):
                yield self._occurrence(digest, occurrence)
        for _, first in self._by_id:
            yield first[:KEY_BYTES]
        for key, _ in self._conflicts:
            yield key

    def _nth(self, digest: bytes) -> bytes:
        before = self._times.claim(digest, _ONCE)
        occurrence = 0 if before is None else int.from_bytes(before, "big")
        if occurrence:
            self._times.put(digest, (occurrence + 1).to_bytes(TIMES_BYTES, "big"))
        return self._occurrence(digest, occurrence)

    def _occurrence(self, digest: bytes, occurrence: int) -> bytes:
        return self._hash(f'["{digest.hex()}",{occurrence}]')

    def _shown(self, packed: bytes) -> str:
        place = int.from_bytes(packed, "big")
        return f"{list(self._sources)[place >> LINE_BITS]}:{place & (1 << LINE_BITS) - 1}"

    def _digest(self, content: list[JSON]) -> bytes:
        # ASCII, so that half a surrogate pair is no trouble; JSON tells 1, 1.0, "1" and true apart.
        return self._hash(_CANONICAL.encode(content))

    def _hash(self, canonical: str) -> bytes:
        return blake2b(canonical.encode(), digest_size=KEY_BYTES, key=self._secret).digest()


def id_digest(name: JSON, size: int = ID_BYTES) -> bytes:
    """By what an id is remembered within a run: its repr tells 1, 1.0, "1" and true apart."""
    return blake2b(repr(name).encode(), digest_size=size).digest()


def understood(
    parsed: Draft | BadLine, key: bytes, source: str, line: int, fault: str | None = None
) -> Prompt | Result:
    """The prompt that a line is, or the error that it comes to. fault: what is wrong with it beside its form."""
    if isinstance(parsed, BadLine):
        bare = Prompt(id=parsed.id, key=key.hex(), source=source, line=line, request={}, batch=parsed.batch)
        return _refused(bare, parsed.message)
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
        deadline=draft.deadline,
        batch=draft.batch,
    )


def _refused(prompt: Prompt, message: str) -> Result:
    return Result(prompt=prompt, error=Failed(kind=Kind.INPUT, message=message, sent=False))
