"""The dialects by name, and which host speaks which. A new provider is a row here, and a file if its format is new."""

from __future__ import annotations

from urllib.parse import urlsplit

from controller.dialects.contract import Dialect
from controller.dialects.openai_chat import OpenAIChat
from controller.dialects.prefix import Prefix
from policies.words import did_you_mean

DAY = 86_400.0  # seconds
MINUTE = 60.0

PLAIN = Prefix()  # a last assistant message is continued as it is
# https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html, "Extra parameters"
TEMPLATE = Prefix(request={"continue_final_message": True, "add_generation_prompt": False})

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        OpenAIChat(),
        OpenAIChat(name="azure", key_header="api-key"),
        # Groq's request headers count per day, its token headers per minute: https://console.groq.com/docs/rate-limits
        OpenAIChat(name="groq", periods={"requests": DAY, "tokens": MINUTE}, prefix=PLAIN),
        # These two answer 200 before they know whether they can serve.
        OpenAIChat(name="openrouter", refuses_inside_200=True, prefix=PLAIN),
        OpenAIChat(name="sglang", refuses_inside_200=True, prefix=TEMPLATE),
        OpenAIChat(name="vllm", prefix=TEMPLATE),
        # https://api-docs.deepseek.com/guides/chat_prefix_completion
        OpenAIChat(name="deepseek", prefix=Prefix(message={"prefix": True}, path="/beta")),
        # https://docs.mistral.ai/guides/prefix: its answers begin with the prefix
        OpenAIChat(name="mistral", prefix=Prefix(message={"prefix": True}, echoes=True)),
        # https://docs.litellm.ai/docs/completion/prefix
        OpenAIChat(name="litellm", prefix=Prefix(message={"prefix": True})),
    )
}

HOSTS = {
    "openai.azure.com": "azure",
    "services.ai.azure.com": "azure",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "openrouter.ai": "openrouter",
}


def dialect_for(name: str | None, base_url: str) -> Dialect:
    """The dialect of that name; without one, by the host of the URL, else "openai". Raises ValueError."""
    if name is None:
        host = urlsplit(base_url).hostname or ""
        name = next((found for known, found in HOSTS.items() if host == known or host.endswith("." + known)), "openai")
    if name in DIALECTS:
        return DIALECTS[name]
    near = did_you_mean(name.lower(), DIALECTS)
    raise ValueError(f"unknown dialect {name!r}{near}; there are: {', '.join(DIALECTS)}")
