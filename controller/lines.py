"""One input line as bytes -> a draft of a prompt, or why it is none: encoding and JSON; the forms are in `forms.py`."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterable
from hashlib import blake2b

import msgspec
from attrs import frozen

from controller.forms import Draft, draft, id_of, is_batch
from controller.records import MOST_NESTED
from policies.contract import JSON

BYTE_ORDER_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


@frozen(kw_only=True)
class BadLine:
    """A line that is no prompt. digest: 16 bytes that tell this line from others."""

    message: str
    digest: bytes
    id: JSON = None  # where the line still told it
    batch: bool = False


def parse_line(raw: bytes, *, text: bool = False) -> Draft | BadLine | None:
    """What one line (without its LF) says; None for a blank one. Never raises, whatever the bytes are.

    A CR at the end and a UTF-8 byte order mark at the start (of any line: files get joined) are dropped.
    text: the line is the prompt itself, as it is.
    """
    line = raw.removesuffix(b"\r").removeprefix(codecs.BOM_UTF8)
    if not line.strip():
        return None
    value: JSON = None
    try:
        decoded = _decode(line)
        value = decoded if text else _load(decoded)
        return draft(value)
    except ValueError as error:
        digest = blake2b(line, digest_size=16).digest()
        return BadLine(message=str(error), digest=digest, id=id_of(value), batch=is_batch(value))


def _decode(line: bytes) -> str:
    try:
        text = line.decode()
        if "\0" not in text:
            return text
        fault = None
    except UnicodeDecodeError as error:
        fault = error
    # JSON holds no NUL and text should not; the order of bytes is told by the first line's mark alone.
    encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if line.startswith(mark)), None)
    if encoding is not None or b"\0" in line:
        encoding = encoding or "UTF-16"
        raise ValueError(f"not UTF-8 but probably {encoding}: convert the file with iconv -f {encoding} -t UTF-8")
    assert fault is not None
    raise ValueError(f"not UTF-8: byte 0x{line[fault.start]:02x} at offset {fault.start} of the line") from fault


def _load(text: str) -> JSON:
    try:
        value: JSON = _decoded(text)
        too_deep = text.count("[") + text.count("{") > MOST_NESTED and _nested_too_deeply(value)
    except RecursionError:
        too_deep = True
    except json.JSONDecodeError as error:
        hint = "" if text.lstrip()[:1] in ("{", '"') else "; for lines of plain text use --input-format text"
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}{hint}") from error
    except _NotFiniteError as error:
        raise ValueError(f"{_field_with_it(text)} {error}, which is no JSON number") from error
    except ValueError as error:  # Python's limit on the conversion of integers
        raise ValueError("a number has more than 4,300 digits") from error
    if too_deep:
        raise ValueError(f"nested too deeply: more than {MOST_NESTED} levels of lists and objects")
    return value


class _NotFiniteError(ValueError):
    """Carries the number as it was written."""


def _finite(number: str) -> float:
    """json would take NaN and Infinity, and 1e999 for infinity; an upstream takes none of them."""
    value = float(number)
    if not math.isfinite(value):
        raise _NotFiniteError(number[:40])
    return value


_DECODER = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)  # loads would make one for every line
_QUICK = msgspec.json.Decoder()  # takes less than json, and that alike: a law of the tests


def _decoded(text: str) -> JSON:
    value: JSON
    try:
        value = _QUICK.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        value = _DECODER.decode(text)
    return value


def _field_with_it(text: str) -> str:
    """The top-level field that holds the first number that is none."""
    try:
        value: JSON = json.loads(text)
        fields = value.items() if isinstance(value, dict) else ()
        return next((f'"{key}" holds' for key, child in fields if not _is_json(child)), "it holds")
    except (ValueError, RecursionError):  # something further on is wrong too
        return "it holds"


def _is_json(value: JSON) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _nested_too_deeply(value: JSON) -> bool:
    level = [value]
    for _ in range(MOST_NESTED):
        level = [child for parent in level for child in _children(parent) if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _children(value: JSON) -> Iterable[JSON]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
