"""The providers and servers that speak OpenAI's chat format, and what differs in each.

Mostly names: of the key's variable, of headers, of places where usage is. Azure has its own way into the header and
its own URLs, see azure.py.
"""

from __future__ import annotations

from attrs import evolve

from controller.charges import Charge
from controller.dialects.azure import at_azure, azure_address, azure_key
from controller.dialects.hints import LimitHeaders
from controller.dialects.openai_chat import OPENAI, OpenAIChat
from controller.dialects.prefix import Prefix
from controller.dialects.quotas import DAY, MINUTE
from controller.dialects.refusals import Habits

PLAIN_REQUESTS = LimitHeaders(
    dimension="requests",
    limit="x-ratelimit-limit",
    remaining="x-ratelimit-remaining",
    reset="x-ratelimit-reset",
)
# Dynamic limits; a 503 is the platform's load, a 429 one's own rate: https://docs.together.ai/docs/rate-limits
TOGETHER = Habits(
    limits=(
        PLAIN_REQUESTS,
        LimitHeaders(
            dimension="tokens",
            limit="x-tokenlimit-limit",
            remaining="x-tokenlimit-remaining",
            reset="x-tokenlimit-reset",
        ),
    ),
    overloaded_statuses=frozenset({503}),
)
MISTRAL = Habits(
    limits=(
        LimitHeaders(
            dimension="requests",
            limit="x-ratelimit-limit-req-minute",
            remaining="x-ratelimit-remaining-req-minute",
            period=MINUTE,
        ),
        LimitHeaders(
            dimension="tokens",
            limit="x-ratelimitbysize-limit-minute",
            remaining="x-ratelimitbysize-remaining-minute",
            reset="ratelimitbysize-reset",
            period=MINUTE,
        ),
    ),
    hopeless_at_zero=("x-ratelimitbysize-remaining-month",),
)
# The headers are of the provider behind it and come in the body: https://openrouter.ai/docs/api-reference/limits
OPENROUTER = Habits(limits=(PLAIN_REQUESTS,))
# Its request headers count per day, its token headers per minute: https://console.groq.com/docs/rate-limits
GROQ = Habits(periods={"requests": DAY, "tokens": MINUTE})

PLAIN = Prefix()  # a last assistant message is continued as it is
# https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html, "Extra parameters"
TEMPLATE = Prefix(request={"continue_final_message": True, "add_generation_prompt": False})

_PLAIN_DELAYS = "Retry-After, text"

FAMILY = (
    OpenAIChat(),
    OpenAIChat(
        name="azure",
        charge=Charge.UP_FRONT,
        about=at_azure(OPENAI, "/openai/v1/chat/completions, /openai/deployments/D/chat/completions?api-version="),
        carry=azure_key,
        address=azure_address,
    ),
    OpenAIChat(
        name="groq",
        charge=Charge.UP_FRONT,
        about=evolve(OPENAI, usage="x_groq.usage", key_env=("GROQ_API_KEY",), hosts=("api.groq.com",)),
        habits=GROQ,
        prefix=PLAIN,
    ),
    OpenAIChat(
        name="openrouter",
        charge=Charge.PRODUCED,
        about=evolve(
            OPENAI,
            delays="Retry-After, headers inside the body, text",
            usage="last chunk",
            key_env=("OPENROUTER_API_KEY",),
            hosts=("openrouter.ai",),
        ),
        habits=OPENROUTER,
        prefix=PLAIN,
        refuses_inside_200=True,  # it answers 200 before it knows whether anybody can serve
    ),
    OpenAIChat(
        name="mistral",
        charge=Charge.UP_FRONT,
        about=evolve(
            OPENAI,
            delays="Retry-After",
            usage="finish chunk",
            key_env=("MISTRAL_API_KEY",),
            hosts=("api.mistral.ai",),
        ),
        habits=MISTRAL,
        # https://docs.mistral.ai/guides/prefix: its answers begin with the prefix
        prefix=Prefix(message={"prefix": True}, echoes=True),
        asks_for_usage=False,  # it has refused stream_options as an unknown field, and tells usage anyway
    ),
    OpenAIChat(
        name="deepseek",
        charge=Charge.PRODUCED,
        about=evolve(OPENAI, delays=_PLAIN_DELAYS, key_env=("DEEPSEEK_API_KEY",), hosts=("api.deepseek.com",)),
        # https://api-docs.deepseek.com/guides/chat_prefix_completion
        prefix=Prefix(message={"prefix": True}, path="/beta"),
    ),
    OpenAIChat(
        name="together",
        charge=Charge.PRODUCED,
        about=evolve(
            OPENAI,
            delays=_PLAIN_DELAYS,
            usage="finish chunk",
            key_env=("TOGETHER_API_KEY",),
            hosts=("api.together.xyz", "api.together.ai"),
        ),
        habits=TOGETHER,
    ),
    OpenAIChat(
        name="gemini-openai",
        charge=Charge.INPUT,
        about=evolve(
            OPENAI,
            path="/v1beta/openai/chat/completions",
            delays="RetryInfo, text",
            usage="last value of any chunk",
            key_env=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            hosts=("generativelanguage.googleapis.com",),
        ),
    ),
    OpenAIChat(
        name="vllm",
        charge=Charge.PRODUCED,
        about=evolve(OPENAI, delays=_PLAIN_DELAYS, key_env=("VLLM_API_KEY",), hosts=()),
        prefix=TEMPLATE,
    ),
    OpenAIChat(
        name="sglang",
        charge=Charge.PRODUCED,
        about=evolve(OPENAI, delays=_PLAIN_DELAYS, key_env=("SGLANG_API_KEY",), hosts=()),
        prefix=TEMPLATE,
        refuses_inside_200=True,  # a full queue is an error event after 200
    ),
    OpenAIChat(
        name="ollama",
        charge=Charge.PRODUCED,
        about=evolve(OPENAI, delays="none", key_env=("OLLAMA_API_KEY",), hosts=("ollama.com",)),
    ),
    OpenAIChat(
        name="litellm",
        charge=Charge.PRODUCED,
        about=evolve(OPENAI, key_env=("LITELLM_API_KEY",), hosts=()),
        prefix=Prefix(message={"prefix": True}),
    ),
)
