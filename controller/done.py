"""Which prompt a line of a results file answers, and whether it did.

A million of them are read before a run goes on, so a line of exactly the form that `records.py` gives it is matched
from end to end, its two long strings aside, which json reads. All other lines, old, foreign, damaged or torn, are
parsed whole, and both ways say the same: that is a law of the tests.
"""

from __future__ import annotations

import codecs
import json
import re

from attrs import frozen

from controller.records import BATCH_ID, KEY_PATTERN
from policies.contract import JSON

# JSON's own grammar; possessive, so that a line that does not match is given up at once.
STRING = r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
PLAIN = r'"([^"\\\x00-\x1f]*+)"'  # a string that stands for itself
WHOLE = r"(?:0|[1-9][0-9]{0,17}+)"
NUMBER = rf"-?{WHOLE}(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
SCALAR = f"(?:{STRING}|{NUMBER}|null|true|false)"
FLAT = rf"\{{(?:{STRING}:{SCALAR}(?:,{STRING}:{SCALAR})*+)?+\}}"  # an object of scalars
BEGIN = re.compile(
    rf'\{{"id":(?:{PLAIN}|null),"key":"([0-9a-f]{{32}})","source":{STRING},"line":{WHOLE},'
    r'"status":"(?:(ok)|error)","text":'
)
REASONING = ',"reasoning":'
END = re.compile(
    rf',"finish_reason":(?:{STRING}|null),"model":{SCALAR},"usage":(?:{FLAT}|null),"attempts":{WHOLE},'
    rf'"throttled":{WHOLE},"timing":{FLAT},"metadata":(?:{SCALAR}|{FLAT}),"error":(?:{FLAT}|null)\}}\n?'
)
_DECODER = json.JSONDecoder()


@frozen
class Done:
    """What a results file says of one prompt: enough to resume."""

    key: bytes
    ok: bool
    id: JSON = None  # of the line that it answers


def read_done(line: bytes) -> Done | None:
    """Which prompt a result line answers; None for a line that is no whole result. Never raises."""
    try:
        text = line.decode()
        return _of_own_form(text) or _of_any_form(text.removeprefix(codecs.BOM_UTF8.decode()))  # an editor's mark
    except (ValueError, RecursionError):
        return None


def _of_own_form(text: str) -> Done | None:
    begin = BEGIN.match(text)
    if begin is None:
        return None
    at = _after(text, begin.end())
    if not text.startswith(REASONING, at):
        return None
    if not END.fullmatch(text, _after(text, at + len(REASONING))):
        return None
    name, key, ok = begin.groups()
    return Done(bytes.fromhex(key), ok is not None, name)


def _after(text: str, at: int) -> int:
    """Where a string or null ends; where it begins if it is something else. ValueError if it does not end."""
    if text.startswith('"', at):
        _, at = _DECODER.raw_decode(text, at)
        return at
    return at + 4 if text.startswith("null", at) else at


def _of_any_form(text: str) -> Done | None:
    value: JSON = json.loads(text)
    if not isinstance(value, dict):
        return None
    if "custom_id" in value and "response" in value:
        name = value.get("id")
        key = name.removeprefix(BATCH_ID) if isinstance(name, str) else None
        return _done(key, value.get("error") is None and _status_code(value["response"]) == 200, value["custom_id"])
    status = value.get("status")
    return _done(value.get("key"), status == "ok", value.get("id")) if status in ("ok", "error") else None


def _done(key: JSON, ok: bool, name: JSON) -> Done | None:
    return Done(bytes.fromhex(key), ok, name) if isinstance(key, str) and KEY_PATTERN.fullmatch(key) else None


def _status_code(response: JSON) -> JSON:
    return response.get("status_code") if isinstance(response, dict) else None
