"""How many LLM tokens a prompt will be, before anybody has counted them: its bytes by kind, and what usage taught.

No tokenizer: a prompt's *size* is its UTF-8 bytes over a first guess of bytes per token for each kind of content, and
what the upstream counts corrects it. The correction is the ratio counted / size at a safe quantile of the last answers
to prompts of the same kind, so that about one in ten is underestimated. Images, sound and files are base64 in a
request; they are guessed as what they are, never by their bytes.

The first guesses, used until ANSWERS answers have come (times UNKNOWN, to be on the safe side): 4 bytes per token for
ASCII prose, 3 for code and JSON, 2.5 for text in other scripts; 1,100 tokens for an image (85 with `"detail": "low"`),
2,000 for a page of a file, a page being 50 kB, and 32 for each second of sound.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from enum import Enum
from math import ceil, inf

from attrs import define, field, frozen

from policies.contract import JSON

MOST = 10**9  # LLM tokens that anything is counted for; no prompt and no answer has so many


class Content(Enum):
    """What most of a prompt is; each kind learns for itself."""

    PROSE = "prose"  # ASCII
    CODE = "code"  # or JSON
    SCRIPT = "script"  # other scripts than Latin's
    MEDIA = "media"  # images, sound and files take the larger part
    COUNTED = "counted"  # by somebody's tokenizer, which knows the kinds itself


BYTES_PER_TOKEN = {Content.PROSE: 4.0, Content.CODE: 3.0, Content.SCRIPT: 2.5}
IMAGE, SMALL_IMAGE = 1100.0, 85.0  # tokens
PAGE, PAGE_BYTES = 2000.0, 50_000.0  # tokens and bytes of a page in a file
SOUND, SOUND_BYTES = 32.0, 16_000.0  # tokens and bytes of a second
MESSAGE = 4.0  # tokens around a message, whatever is in it

SAFE = 0.9  # quantile; larger reserves more and underestimates less often
KEPT = 256  # answers that are looked back on
ANSWERS = 5  # from so many on a quantile is worth more than a guess
UNKNOWN = 1.2  # times the first guess, as long as it is one

CONTENTS = ("messages", "prompt", "input", "contents", "system", "systemInstruction", "instructions")
SCHEMAS = ("tools", "functions", "response_format")
MARKS = "{}[]();=<>_\\"  # what code and JSON have more of than prose
SAMPLE = 4000  # characters that are looked at to tell code from prose
MARKED = 0.06  # share of marks from which on it is code


@frozen(kw_only=True)
class Size:
    """How large a prompt is: LLM tokens by the first guesses, and what most of it is."""

    tokens: float
    kind: Content


@define(eq=False)
class Quantile:
    """The safe quantile of the last KEPT numbers. prior: what to go by until there are enough, from an earlier run."""

    prior: float | None = None
    _sorted: list[float] = field(factory=list)
    _order: deque[float] = field(factory=deque)

    def add(self, number: float) -> None:
        """One more; the oldest makes room."""
        if len(self._order) == KEPT:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(number)
        insort(self._sorted, number)

    @property
    def value(self) -> float | None:
        """None before there are enough, unless an earlier run left one."""
        count = len(self._sorted)
        return self._sorted[min(int(SAFE * count), count - 1)] if count >= ANSWERS else self.prior


@define(eq=False)
class Estimator:
    """What one model's answers have taught. All numbers are LLM tokens."""

    counted: int = 0  # input tokens, by the upstream's usage
    estimated: int = 0  # the same prompts, by us before they were sent
    _by_kind: dict[Content, Quantile] = field(factory=lambda: {kind: Quantile() for kind in Content})
    _all: Quantile = field(factory=Quantile)
    _output: Quantile = field(factory=Quantile)

    def input_tokens(self, size: Size) -> int:
        """At least one."""
        ratio = self._by_kind[size.kind].value or self._unlearned(size.kind)
        return max(ceil(size.tokens * ratio), 1)

    def _unlearned(self, kind: Content) -> float:
        return 1.0 if kind is Content.COUNTED else self._all.value or UNKNOWN

    def output_tokens(self) -> int | None:
        """What an answer's length rarely exceeds; None before enough have been seen."""
        value = self._output.value
        return None if value is None else ceil(value)

    def learn_input(self, size: Size, estimated: int, counted: int) -> None:
        """The upstream counted a prompt of that size; zero is no count (a cached prompt is one for some servers)."""
        if counted > 0 and size.tokens > 0:
            self.counted += counted
            self.estimated += estimated
            self._by_kind[size.kind].add(counted / size.tokens)
            self._all.add(counted / size.tokens)

    def learn_output(self, counted: int) -> None:
        """A whole answer had so many."""
        if counted > 0:
            self._output.add(float(counted))

    # -- for the next run

    @property
    def learned(self) -> dict[str, float]:
        """Its quantiles by name."""
        named = ((name, quantile.value) for name, quantile in self._quantiles().items())
        return {name: value for name, value in named if value is not None}

    def recall(self, learned: Mapping[str, float]) -> None:
        """Begin with what an earlier run had learned."""
        for name, quantile in self._quantiles().items():
            value = learned.get(name, 0.0)
            quantile.prior = value if 0 < value < inf else None

    def _quantiles(self) -> dict[str, Quantile]:
        return {kind.value: each for kind, each in self._by_kind.items()} | {"all": self._all, "output": self._output}


def size_of(request: dict[str, JSON]) -> Size:
    """Any body in any dialect's form: its content is looked at, its parameters are not."""
    tally = dict.fromkeys(Content, 0.0)
    for name in CONTENTS:
        if name in request:
            _weigh(request[name], tally)
    for name in SCHEMAS:
        if name in request:
            tally[Content.CODE] += len(str(request[name]).encode("utf-8", "replace")) / BYTES_PER_TOKEN[Content.CODE]
    return Size(tokens=sum(tally.values()), kind=max(tally, key=lambda kind: tally[kind]))


def _weigh(value: JSON, tally: dict[Content, float]) -> None:
    """Add the tokens of all that is in it."""
    pending: list[JSON] = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            kind, tokens = _media(each) or _text(each)
            tally[kind] += tokens
        elif isinstance(each, dict):
            tally[Content.PROSE] += MESSAGE if "role" in each else 0.0
            pending += _without_media(each, tally)
        elif isinstance(each, list):
            pending += each
        elif isinstance(each, int | float):
            tally[Content.PROSE] += 1.0  # embeddings take token numbers


def _text(text: str) -> tuple[Content, float]:
    sample = text[:SAMPLE]
    marks = sum(sample.count(mark) for mark in MARKS)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    if size > 1.25 * len(text):
        kind = Content.SCRIPT
    else:
        kind = Content.CODE if marks > MARKED * len(sample) else Content.PROSE
    return kind, size / BYTES_PER_TOKEN[kind]


def _media(text: str) -> tuple[Content, float] | None:
    """A data URL."""
    if not text.startswith("data:") or ";base64," not in text[:200]:
        return None
    return Content.MEDIA, _tokens_of(text[5:].partition(";")[0], len(text))


def _without_media(part: dict[str, JSON], tally: dict[Content, float]) -> list[JSON]:
    """What of a part is to be looked at further: not its names, not base64, not where an image lies."""
    names = ("media_type", "mimeType", "mime_type", "format")
    media_type = next((part[name] for name in names if name in part), None)
    data, low = part.get("data"), part.get("detail") == "low"
    if isinstance(data, str) and isinstance(media_type, str):
        tally[Content.MEDIA] += _tokens_of(media_type, len(data))
        return []
    url = part.get("url", part.get("image_url"))
    if isinstance(url, str) and (
        low or "image_url" in part or "detail" in part or url.startswith(("data:image", "http"))
    ):
        tally[Content.MEDIA] += SMALL_IMAGE if low else IMAGE
        return [value for name, value in part.items() if name not in ("url", "image_url", "detail", "type")]
    return [value for name, value in part.items() if name not in ("role", "type", "id", "cache_control")]


def _tokens_of(media_type: str, length: int) -> float:
    """length: of the base64, four characters for three bytes."""
    size = 0.75 * length
    if media_type.startswith("audio") or media_type in ("wav", "mp3"):
        return SOUND * max(size / SOUND_BYTES, 1.0)
    if media_type.startswith("image"):
        return IMAGE
    return PAGE * ceil(size / PAGE_BYTES)
