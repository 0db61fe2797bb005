"""Millions of keys in little memory: a hash table whose buckets are bytes, in which the interpreter searches in C.

A dict of bytes costs 120 to 150 bytes an entry, most of it the objects' heads. Here an entry costs its own bytes and
some 10 %. A key is a digest, so its first bits are as good as a hash and choose the bucket; the rest of it and the
value lie in the bucket one after the other. Entries are never removed.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

BUCKET_BITS = 14  # 60 entries a bucket at a million: found in half a microsecond


@define(eq=False)
class KeyTable:
    """Keys of `key_bytes` (3 or more; digests, or it becomes slow) and for each a value below 256 ** value_bytes."""

    key_bytes: int = 16
    value_bytes: int = 1
    _buckets: dict[int, bytearray] = field(factory=dict, init=False)
    _count: int = field(default=0, init=False)

    def get(self, key: bytes) -> int | None:
        """The value of a key, None without one."""
        bucket = self._buckets.get(_number(key))
        at = -1 if bucket is None else self._find(bucket, key)
        if bucket is None or at < 0:
            return None
        at += self.key_bytes - 1
        return int.from_bytes(bucket[at : at + self.value_bytes], "big")

    def put(self, key: bytes, value: int = 0) -> None:
        """Add a key, or give it another value."""
        if self.claim(key, value) is not None:
            bucket = self._buckets[_number(key)]
            at = self._find(bucket, key) + self.key_bytes - 1
            bucket[at : at + self.value_bytes] = value.to_bytes(self.value_bytes, "big")

    def claim(self, key: bytes, value: int = 0) -> int | None:
        """Add a key unless it is there: then its value."""
        bucket = self._buckets.get(_number(key))
        if bucket is None:
            bucket = self._buckets[_number(key)] = bytearray()
        at = self._find(bucket, key)
        if at < 0:
            assert len(key) == self.key_bytes
            bucket += key[1:] + value.to_bytes(self.value_bytes, "big")
            self._count += 1
            return None
        at += self.key_bytes - 1
        return int.from_bytes(bucket[at : at + self.value_bytes], "big")

    def _find(self, bucket: bytearray, key: bytes) -> int:
        """Where the entry begins, -1 without one. What is found across two entries is none."""
        rest = key[1:]
        at = bucket.find(rest)
        while at > 0 and (astray := at % (width := self.key_bytes - 1 + self.value_bytes)):
            at = bucket.find(rest, at - astray + width)
        return at

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.get(key) is not None

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Every key with its value, in no order. Nothing may be added meanwhile."""
        width = self.key_bytes - 1 + self.value_bytes
        for number, bucket in self._buckets.items():
            first = (number >> BUCKET_BITS - 8).to_bytes(1, "big")
            for at in range(0, len(bucket), width):
                entry = bytes(bucket[at : at + width])
                yield first + entry[: self.key_bytes - 1], int.from_bytes(entry[self.key_bytes - 1 :], "big")

    def __len__(self) -> int:
        return self._count


def _number(key: bytes) -> int:
    """The bucket of a key: its first byte, which the bucket need not hold, and some bits of the second."""
    return int.from_bytes(key[:2], "big") >> 16 - BUCKET_BITS
