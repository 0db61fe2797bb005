"""The official openai SDK, in an environment of its own, as a client of our simulated upstream."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command import upstream

CLIENT = """
import sys
import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="made-up", max_retries=0)
ask = dict(model="m", messages=[{"role": "user", "content": "hello"}])

chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
finish = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]
assert text and finish == "stop", (text, finish)
assert chunks[-1].usage.completion_tokens > 0 and chunks[-1].choices == []

whole = client.chat.completions.create(**ask, n=2)
assert [choice.index for choice in whole.choices] == [0, 1] and whole.usage.total_tokens > 0

vectors = client.embeddings.create(model="e", input=["one", "two"]).data
assert [vector.index for vector in vectors] == [0, 1] and len(vectors[0].embedding) > 1
assert client.embeddings.create(model="e", input="one", encoding_format="float").data[0].embedding

assert [model.id for model in client.models.list()]

refused = None
for _ in range(50):
    try:
        client.chat.completions.create(**ask)
    except openai.RateLimitError as error:
        refused = error
        break
assert refused is not None and refused.status_code == 429
assert float(refused.response.headers["retry-after"]) > 0
assert refused.code == "rate_limit_exceeded", refused.code
try:
    client.chat.completions.create(model="m", messages="no list")
except openai.BadRequestError as error:
    assert error.status_code == 400
else:
    raise AssertionError("a bad request was taken")
print("all well")
"""


@pytest.mark.slow
def test_the_openai_sdk_streams_embeds_and_gets_its_rate_limit_error(tmp_path: Path) -> None:
    home = tmp_path / "sdk"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    python = home / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "openai>=3,<4"], check=True)
    (tmp_path / "client.py").write_text(CLIENT)
    with upstream("steady?rate=2&burst=12&latency=0.05") as url:
        done = subprocess.run(
            [python, tmp_path / "client.py", url], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.stdout == "all well\n", done.stderr
