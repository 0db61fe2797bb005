"""simulations/profiles/README.md: every parameter of the simulated upstream, written by a command and never by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import NOTHING, fields

from simulations.dialects.contract import KINDS
from simulations.knobs import Profile
from simulations.profile import load_profile, profile_names
from simulations.steps import Steps

INTRO = """# Parameters of the simulated upstream

Written by `python -m simulations.knobs_page`; do not edit. A spec is the name of a file in this folder and then
parameters as in a URL's query: `steady?rate=50&fault=in-band-rate,reset&fault_share=0.1&manners=cr,bytewise`. The same
names are the keys of the files, and of `[upstream]` in a scenario. What may step over time is a number or
`[[from_seconds, number], ...]`.

One provider answers in several dialects, all from the same quotas; the request's path decides. What `dialect` says is
only what `tidegate run --base-url sim:NAME` asks in, and the key of Azure, DeepSeek and vLLM is OpenAI's.

- `/v1/chat/completions` and `/v1/embeddings`, also under `/v1beta/openai`, `/openai/v1`, `/api/v1`, Azure's
  `/openai/deployments/NAME` or no prefix: OpenAI, with errors as `wording` says. Key: `Authorization: Bearer` or
  `api-key`.
- `/v1/responses`, under the same prefixes: OpenAI Responses. Key: the same.
- `/v1/messages`: Anthropic Messages. Key: `x-api-key`, `Authorization: Bearer`.
- `/v1beta/models/MODEL:generateContent` and `:streamGenerateContent`, with `alt=sse` or as a JSON array, also under
  Vertex AI's paths: Gemini. Key: `x-goog-api-key`, `?key=`, `Authorization: Bearer`.

`GET /_sim/statistics` tells what it saw, `POST /_sim/reset` begins anew. `attempts` = `accepted` + `refused` (by
requests, tokens, input_tokens, output_tokens, requests_per_day, concurrency, slope, dice, outage) + `rejected` (by
status); `errors` are the accepted ones that met a fault, and `refused_during_hold` counts attempts sent though a
Retry-After had been heard of. A prompt's key in `attempts_by_prompt` is the first 16 hex digits of the SHA-256 of its
messages in OpenAI's form, as JSON with sorted keys, without blanks, in ASCII; the other dialects are turned into that
form, so a prompt has one key, and one answer, in all of them.
"""

FAULT_WORDS: Mapping[str, str] = {
    "error": "the HTTP status `error_status`",
    "reset": "RST, half of them before any answer, half within it",
    "cut": "closed within an event, without the last HTTP chunk",
    "truncate": "a clean end between two events, before the finish",
    "stall": "silence for `stall_seconds`, half before any answer, half within it, then the cut",
    "comments": "after some events nothing but comments for `stall_seconds`, then the cut",
    "unterminated": "everything but the last event",
    "error-done": "an error in the stream, and the terminator after it",
    "html": "status 200 and a web page",
    "empty": "status 200 and no body",
    "no-choices": 'status 200 and `{"id":null,"choices":null}`',
    "pretty-error": "status 200 and an error as JSON over many lines, called events",
    "html-502": "status 502 and a web page",
    "empty-502": "status 502 and no body",
    "empty-429": "status 429, no body, no hint",
    "text-429": "status 429 and plain text, no hint",
}
MANNER_WORDS: Mapping[str, str] = {
    "padding": "events without text (usage alone, empty choices, pings, unknown names) and comments between the others",
    "fields": "a comment, `id`, `retry` and an unknown field within each event",
    "multi-line": "the data of an event over several lines",
    "no-space": "`data:` without a space",
    "crlf": "lines end with CR LF",
    "cr": "lines end with CR alone",
    "no-last-blank": "no line end after the last event",
    "bom": "a byte order mark at the beginning",
    "gzip": "compressed",
    "bytewise": "one byte at a time",
    "wrong-type": "the content type says nothing",
    "no-type": "there is no content type",
    "held": "after the terminator the connection stays open for half a minute",
    "separators": "U+2028, U+0085 and their like in the text",
    "split-surrogates": "the two halves of a character in two deltas",
    "lone-surrogate": "half a character without its other half",
    "nul": "U+0000 in the text",
    "long-line": "a delta of a megabyte",
    "no-text": "no text at all, finished for its length",
}
FORM_WORDS: Mapping[str, str] = {
    "usual": "as the dialect does: header and text, or for Gemini the body alone",
    "seconds": "`Retry-After: 3`, and the text as well",
    "ms": "`Retry-After-Ms` alone",
    "both": "both headers",
    "date": "`Retry-After` as a date, to be read against `Date`",
    "past-date": "a date of yesterday",
    "twice": "two `Retry-After` headers",
    "junk": "`Retry-After: soon`",
    "body": "the text or the body alone",
    "per-day": "a short `Retry-After` while the body blames a limit per day",
}


def page() -> str:
    """The whole file."""
    kinds = ", ".join(KINDS)
    families = {
        "http-KIND": f"the dialect's HTTP status and words for that kind of trouble: {kinds}",
        "in-band-KIND": "status 200 and, after some events, the same trouble in the stream (or as the body)",
    }
    parts = [
        INTRO,
        "## Profiles\n",
        "| name | requests | LLM tokens per minute | booked | asked in |",
        "|---|---|---|---|---|",
    ]
    parts += [*map(_profile, profile_names()), ""]
    parts += ["## Parameters\n", "| name | default | unit | meaning |", "|---|---|---|---|", *_parameters()]
    parts += ["", "## `fault`\n", *_words({**FAULT_WORDS, **families})]
    parts += ["", "## `manners`\n", *_words(MANNER_WORDS), "", "## `hint`\n", *_words(FORM_WORDS)]
    return "\n".join(parts) + "\n"


def _profile(name: str) -> str:
    profile = load_profile(name)
    requests = []
    if profile.quota != "none":
        kind = {"bucket": "bucket", "fixed": "calendar"}.get(profile.quota, profile.quota)
        window = "" if profile.window is None else f" in windows of {profile.window:g} s"
        requests.append(f"{profile.per_second.at(0.0) * 60:g} a minute ({kind}{window})")
    requests += [] if profile.requests_per_day is None else [f"{profile.requests_per_day:g} a day"]
    requests += [] if profile.concurrency is None else [f"{profile.concurrency} at once"]
    requests += [] if profile.served_per_second is None else [f"a queue, {profile.served_per_second:g} a second"]
    limits = {
        "": profile.tokens_per_minute,
        " in": profile.input_tokens_per_minute,
        " out": profile.output_tokens_per_minute,
    }
    tokens = ", ".join(f"{limit:,.0f}{word}" for word, limit in limits.items() if limit is not None)
    return f"| `{name}` | {', '.join(requests)} | {tokens} | {profile.charge if tokens else ''} | {profile.dialect} |"


def _parameters() -> Iterator[str]:
    for attribute in fields(Profile):
        if attribute.name != "name":
            metadata = attribute.metadata
            yield f"| `{attribute.name}` | {_default(attribute.default)} | {metadata['unit']} | {metadata['help']} |"


def _default(value: object) -> str:
    if value is NOTHING or isinstance(value, Steps):
        return ""
    if value is None or value == ():
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _words(words: Mapping[str, str]) -> Iterator[str]:
    yield "| name | meaning |"
    yield "|---|---|"
    yield from (f"| `{name}` | {meaning} |" for name, meaning in words.items())


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the one thing that this command does
