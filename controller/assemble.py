"""From settings to what they mean: URL, key, request parameters. Faults are ValueErrors of one line."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from controller.daemon import pair
from controller.settings import Settings
from policies.contract import JSON

SIMULATED = "sim:"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def checked_url(base_url: str | None) -> str:
    """The base URL without its last slash; never echoes one that carries a password."""
    if not base_url:
        raise ValueError("no --base-url: give the API's address, e.g. https://api.openai.com/v1, or sim:steady")
    url = urlsplit(base_url)
    if "@" in url.netloc:
        raise ValueError("--base-url holds a user or password; give the key by --api-key-env or --api-key-file")
    if url.scheme not in ("http", "https"):
        raise ValueError(f"--base-url {base_url!r} has no scheme; did you mean https://{base_url.lstrip('/:')} ?")
    try:
        host_is_there = bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        host_is_there = False
    if not host_is_there:
        raise ValueError(f"--base-url {base_url!r} names no host, or a port that can't be")
    return base_url.rstrip("/")


def is_loopback(base_url: str) -> bool:
    """The host is this machine."""
    host = urlsplit(base_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def read_key(settings: Settings, environment: Mapping[str, str], base_url: str) -> str | None:
    """The API key, or None for a loopback host without one. Messages never hold what a key may have been put into."""
    if settings.api_key_file is not None:
        try:
            key = Path(settings.api_key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--api-key-file {settings.api_key_file} can't be read: {error}") from error
        return _usable(key, f"--api-key-file {settings.api_key_file}")
    if settings.api_key_env is not None:
        if not NAME.match(settings.api_key_env):
            raise ValueError("--api-key-env takes the name of an environment variable, not the key itself")
        if settings.api_key_env not in environment:
            raise ValueError(f"--api-key-env: there is no environment variable {settings.api_key_env}")
        return _usable(environment[settings.api_key_env], f"the variable {settings.api_key_env}")
    if is_loopback(base_url):
        return None
    raise ValueError(f"no key for {urlsplit(base_url).hostname}: give --api-key-env VARIABLE or --api-key-file FILE")


def _usable(key: str, source: str) -> str:
    if not key:
        raise ValueError(f"{source} is empty")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"{source} holds no key: it has blanks, line ends or letters that no HTTP header may carry")
    return key


def request_defaults(settings: Settings, base_url: str) -> dict[str, JSON]:
    """Request parameters for lines that do not set them."""
    defaults: dict[str, JSON] = {}
    simulated = (settings.base_url or "").startswith(SIMULATED)
    if settings.model is not None or simulated:
        defaults["model"] = settings.model or "sim"
    if settings.max_tokens is not None:
        host = urlsplit(base_url).hostname or ""
        # OpenAI's newer models refuse the old name, many compatible servers do not know the new one.
        defaults["max_completion_tokens" if host.endswith("openai.com") else "max_tokens"] = settings.max_tokens
    for each in settings.param:
        key, text = pair(each)
        try:
            defaults[key] = json.loads(text)
        except ValueError as error:
            raise ValueError(f"--param {key}: {text!r} is not JSON; a text needs quotes: {key}='\"...\"'") from error
    return defaults
