"""The providers' own SDKs, each in an environment of its own, as clients of our simulated upstream."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from command import upstream
from judges import environment_with

pytestmark = [pytest.mark.slow, pytest.mark.judge(name="sdk")]
SPEC = "steady?rate=2&burst=12&latency=0.05&thoughts=3"
BROKEN = "steady?latency=0.05&fault=in-band-overloaded&fault_at=6"

OPENAI = """
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

events = list(client.responses.create(model="m", input="hello", stream=True))
assert events[0].type == "response.created" and events[-1].type == "response.completed"
streamed = "".join(event.delta for event in events if event.type == "response.output_text.delta")
assert streamed == text == events[-1].response.output_text
assert events[-1].response.usage.output_tokens > 0
with client.responses.stream(model="m", input="hello") as stream:
    assert stream.get_final_response().output_text == text
short = client.responses.create(model="m", input="hello", max_output_tokens=2)
assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")

def refused(call):
    for _ in range(50):
        try:
            call()
        except openai.RateLimitError as error:
            assert error.status_code == 429 and float(error.response.headers["retry-after"]) > 0
            assert error.code == "rate_limit_exceeded", error.code
            return
    raise AssertionError("never refused")

refused(lambda: client.chat.completions.create(**ask))
refused(lambda: client.responses.create(model="m", input="hello"))
try:
    client.chat.completions.create(model="m", messages="no list")
except openai.BadRequestError as error:
    assert error.status_code == 400
else:
    raise AssertionError("a bad request was taken")

broken = openai.OpenAI(base_url=sys.argv[2], api_key="made-up", max_retries=0)
try:
    list(broken.chat.completions.create(**ask, stream=True))
except openai.APIError as error:
    assert "overloaded" in str(error), error
else:
    raise AssertionError("an error within a stream was overlooked")
*_, last = broken.responses.create(model="m", input="hello", stream=True)  # its error events don't raise
assert (last.type, last.code) == ("error", "engine_overloaded"), last
print("all well")
"""

ANTHROPIC = """
import sys
import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1].removesuffix("/v1"), api_key="made-up", max_retries=0)
ask = dict(model="m", max_tokens=1000, messages=[{"role": "user", "content": "hello"}])

with client.messages.stream(**ask, system="Be brief.") as stream:
    text = "".join(stream.text_stream)
    message = stream.get_final_message()
assert text and message.stop_reason == "end_turn", message
assert [block.type for block in message.content] == ["thinking", "text"], message.content
assert message.content[1].text == text
assert message.usage.input_tokens > 0 and message.usage.output_tokens > 5, message.usage

events = [event.type for event in client.messages.create(**ask, stream=True)]
assert events[0] == "message_start" and events[-1] == "message_stop", events

whole = client.messages.create(**ask)
assert whole.content[-1].text and whole.usage.output_tokens > 5
short = client.messages.create(**{**ask, "max_tokens": 2})
assert short.stop_reason == "max_tokens"

for _ in range(50):
    try:
        client.messages.create(**ask)
    except anthropic.RateLimitError as error:
        assert error.status_code == 429 and float(error.response.headers["retry-after"]) > 0
        assert error.body["error"]["type"] == "rate_limit_error", error.body
        break
else:
    raise AssertionError("never refused")
try:
    client.messages.create(**{**ask, "messages": []})
except anthropic.BadRequestError as error:
    assert error.body["error"]["type"] == "invalid_request_error"
else:
    raise AssertionError("a bad request was taken")

broken = anthropic.Anthropic(base_url=sys.argv[2].removesuffix("/v1"), api_key="made-up", max_retries=0)
try:
    list(broken.messages.create(**ask, stream=True))
except anthropic.APIStatusError as error:
    assert error.body["error"]["type"] == "overloaded_error", error.body
else:
    raise AssertionError("an error within a stream was overlooked")
print("all well")
"""

GENAI = """
import sys
from google import genai
from google.genai import errors, types

options = types.HttpOptions(base_url=sys.argv[1].removesuffix("/v1"))
client = genai.Client(api_key="made-up", http_options=options)
ask = dict(model="m", contents="hello")

chunks = list(client.models.generate_content_stream(**ask))
parts = [part for chunk in chunks for part in (chunk.candidates[0].content.parts or [])]
text = "".join(part.text for part in parts if not part.thought)
assert text and [part for part in parts if part.thought]
last = chunks[-1]
assert last.candidates[0].finish_reason == types.FinishReason.STOP, last
assert last.usage_metadata.candidates_token_count > 5 and last.usage_metadata.thoughts_token_count > 0
assert last.usage_metadata.prompt_token_count > 0

whole = client.models.generate_content(**ask)
assert whole.text == text, (whole.text, text)
config = types.GenerateContentConfig(system_instruction="Be brief.", max_output_tokens=2)
short = client.models.generate_content(**ask, config=config)
assert short.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS

for stream in (False, True):
    for _ in range(50):
        try:
            if stream:
                list(client.models.generate_content_stream(**ask))
            else:
                client.models.generate_content(**ask)
        except errors.ClientError as error:
            assert (error.code, error.status) == (429, "RESOURCE_EXHAUSTED"), error
            assert any("retryDelay" in detail for detail in error.details["error"]["details"])
            break
    else:
        raise AssertionError("never refused")
try:
    client.models.generate_content(model="m", contents=[])
except (errors.ClientError, ValueError):
    pass
else:
    raise AssertionError("a bad request was taken")

broken = genai.Client(
    api_key="made-up", http_options=types.HttpOptions(base_url=sys.argv[2].removesuffix("/v1"))
)
try:
    list(broken.models.generate_content_stream(**ask))
except errors.APIError as error:
    assert (error.code, error.status) == (503, "UNAVAILABLE"), error
else:
    raise AssertionError("an error within a stream was overlooked")
print("all well")
"""


@pytest.mark.parametrize(
    ("package", "client"), [("openai>=3,<4", OPENAI), ("anthropic>=2,<3", ANTHROPIC), ("google-genai>=3,<4", GENAI)]
)
def test_an_sdk_streams_text_and_usage_and_raises_its_own_errors(package: str, client: str, tmp_path: Path) -> None:
    python = environment_with(tmp_path / "sdk", package) / "python"
    (tmp_path / "client.py").write_text(client)
    with upstream(SPEC) as url, upstream(BROKEN) as broken:
        done = subprocess.run(
            [python, tmp_path / "client.py", url, broken], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.stdout == "all well\n", done.stderr
