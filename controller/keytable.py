"""Millions of keys in little memory: a hash table whose buckets are bytes, in which the interpreter searches in C.

A dict of bytes costs 120 to 150 bytes an entry, most of it the objects' heads. Here an entry costs its own bytes and
some 10 %. A key is a digest, so its first bits are as good as a hash and choose the bucket; the rest of it and the
value lie in the bucket one after the other. Entries are never removed.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

BUCKET_BITS = 14  # 60 entries a bucket at a million: found in half a microsecond
LEFT, RIGHT = (
    BUCKET_BITS - 8,
    16 - BUCKET_BITS,
)  # the first byte, which a bucket need not hold, and some bits of the next


@define(eq=False)
class KeyTable:
    """Keys of `key_bytes` (3 or more; digests, or it becomes slow), each with a value of `value_bytes`."""

    key_bytes: int = 16
    value_bytes: int = 1
    _buckets: list[bytearray | None] = field(init=False)
    _width: int = field(init=False)  # of an entry
    _count: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._buckets = [None] * (1 << BUCKET_BITS)
        self._width = self.key_bytes - 1 + self.value_bytes

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None without one."""
        bucket = self._buckets[key[0] << LEFT | key[1] >> RIGHT]
        if bucket is None:
            return None
        rest = key[1:]
        at = bucket.find(rest)
        if at > 0:
            at = self._entry(bucket, rest, at)
        return None if at < 0 else bytes(bucket[at + len(rest) : at + self._width])

    def put(self, key: bytes, value: bytes = b"") -> None:
        """Add a key, or give it another value."""
        known = self.claim(key, value)
        bucket = self._buckets[key[0] << LEFT | key[1] >> RIGHT]
        if known is not None and bucket is not None:
            at = self._entry(bucket, key[1:], 0)
            bucket[at + self.key_bytes - 1 : at + self._width] = value

    def claim(self, key: bytes, value: bytes = b"") -> bytes | None:
        """Add a key unless it is there: then its value."""
        number, rest = key[0] << LEFT | key[1] >> RIGHT, key[1:]
        bucket = self._buckets[number]
        if bucket is None:
            bucket = self._buckets[number] = bytearray()
        at = bucket.find(rest)
        if at > 0:
            at = self._entry(bucket, rest, at)
        if at >= 0:
            return bytes(bucket[at + len(rest) : at + self._width])
        entry = rest + value
        assert len(entry) == self._width
        bucket += entry
        self._count += 1
        return None

    def _entry(self, bucket: bytearray, rest: bytes, start: int) -> int:
        """Where its entry begins, at `start` or later, -1 without one. What is found across two entries is none."""
        at = bucket.find(rest, start)
        while at > 0 and (astray := at % self._width):
            at = bucket.find(rest, at - astray + self._width)
        return at

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.get(key) is not None

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key with its value, in no order. Nothing may be added meanwhile."""
        for number, bucket in enumerate(self._buckets):
            if bucket is None:
                continue
            first = (number >> LEFT).to_bytes(1, "big")
            for at in range(0, len(bucket), self._width):
                entry = bytes(bucket[at : at + self._width])
                yield first + entry[: self.key_bytes - 1], entry[self.key_bytes - 1 :]

    def __len__(self) -> int:
        return self._count
