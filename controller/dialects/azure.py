"""Azure OpenAI: OpenAI's chat format under other URLs and another key header.

https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle. The base URL decides between the two ways:
`https://NAME.openai.azure.com/openai/v1` takes the model from the body and needs no version;
`https://NAME.openai.azure.com/openai/deployments/DEPLOYMENT?api-version=2024-10-21` ignores the model. A base URL that
ends before both takes the first way. `api-key` carries a key; an Entra token (a JWT) goes as Bearer.
"""

from __future__ import annotations

from attrs import evolve

from controller.dialects.asking import joined
from controller.dialects.contract import About
from controller.records import Prompt

API_VERSION = "2024-10-21"  # the last dated one that is generally available; a base URL may name another
DEPLOYMENTS = "/openai/deployments/"


def at_azure(about: About, path: str) -> About:
    """What is said of a dialect, where Azure serves it."""
    return evolve(
        about,
        auth="api-key (an Entra token as Bearer)",
        path=path,
        key_env=("AZURE_OPENAI_API_KEY",),
        hosts=("openai.azure.com", "services.ai.azure.com", "cognitiveservices.azure.com"),
    )


def azure_key(key: str) -> dict[str, str]:
    """A key or an Entra token, each where Azure looks for it."""
    is_token = key.startswith("eyJ") and key.count(".") == 2
    return {"authorization": f"Bearer {key}"} if is_token else {"api-key": key}


def azure_address(base_url: str, prompt: Prompt) -> str:
    """Below a deployment with a version, or below /openai/v1 without."""
    return azure_path(base_url, prompt.endpoint)


def azure_path(base_url: str, endpoint: str) -> str:
    """The endpoint's URL."""
    base, _, query = base_url.partition("?")
    if DEPLOYMENTS in base:
        return joined(base_url, endpoint, query="" if "api-version=" in query else f"api-version={API_VERSION}")
    if base.endswith("/v1"):
        return joined(base_url, endpoint)
    return joined(base_url, f"v1/{endpoint}" if base.endswith("/openai") else f"openai/v1/{endpoint}")
