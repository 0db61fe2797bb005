"""OpenAI's embeddings: https://platform.openai.com/docs/api-reference/embeddings."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from random import Random

from policies.contract import JSON
from simulations.answers import dump
from simulations.asked import Asked, count_tokens, digest, whole

MOST_DIMENSIONS = 4096


def parse(model: str, values: Mapping[str, JSON]) -> Asked:
    """A text, a list of texts, a list of tokens, or a list of those; raises ValueError."""
    given = values.get("input")
    # A list of numbers is one input, already cut into tokens by the client.
    inputs = given if isinstance(given, list) and not all(isinstance(part, int) for part in given) else [given]
    if given is None or given in ("", []) or not all(isinstance(part, str | list) for part in inputs):
        raise ValueError("Missing required parameter: 'input'.")
    encoding = values.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise ValueError("Invalid value for 'encoding_format': supported are 'float' and 'base64'.")
    texts = tuple(part if isinstance(part, str) else json.dumps(part) for part in inputs)
    return Asked(
        endpoint="embeddings",
        digest=digest(given),
        model=model,
        input_tokens=sum(
            len(part) if isinstance(part, list) else count_tokens(text)
            for part, text in zip(inputs, texts, strict=True)
        ),
        texts=texts,
        as_base64=encoding == "base64",
        dimensions=whole(values, "dimensions", MOST_DIMENSIONS) or 8,
    )


def body(asked: Asked, seed: int) -> bytes:
    """Small vectors with components in [-1, 1), the same for the same seed and text."""
    data: list[JSON] = []
    for index, text in enumerate(asked.texts):
        rng = Random(f"{seed}/{text!r}")
        vector = [rng.uniform(-1.0, 1.0) for _ in range(asked.dimensions)]
        packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
        data.append({"object": "embedding", "index": index, "embedding": packed if asked.as_base64 else [*vector]})
    usage: JSON = {"prompt_tokens": asked.input_tokens, "total_tokens": asked.input_tokens}
    return dump({"object": "list", "data": data, "model": asked.model, "usage": usage})
