"""From settings to what they mean: URL, key, request parameters. Faults are ValueErrors of one line."""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from controller.budget import Price
from controller.charges import CHARGES, Charge
from controller.dialects.contract import Dialect
from controller.dialects.table import key_variable, own_host
from controller.following import check_followed
from controller.gates import pair
from controller.identity import Identities
from controller.intake import Intake
from controller.journal import STDOUT, check_output
from controller.memory import Memory
from controller.outcome import Usage
from controller.prices import Prices
from controller.proxies import is_loopback_host
from controller.records import Prompt
from controller.repair import Ledger
from controller.settings import Settings
from controller.sources import STDIN, check_readable
from controller.tokenizers import Sizer, find
from policies.contract import JSON
from policies.words import did_you_mean

SIMULATED = "sim:"
LONGEST_URL = 2000  # characters
ENDPOINT = re.compile(r"/(?:chat/completions|completions|embeddings|responses|messages)(?=\Z|\?)")  # ends a URL
MODEL = re.compile(r"(?:/publishers/google)?/models/[^/]+\Z")  # in a URL of Gemini's
AZURE_VERSION = re.compile(r"api-version=[\w.-]+")  # the one query a base URL may have; any other may hold a key


def check_files(settings: Settings, sources: tuple[str, ...]) -> None:
    """Can the prompts be read and the results written, and is no file used for two things?"""
    check = check_followed if settings.follow else check_readable
    for source in sources:
        check(source)
    if STDIN in sources and sys.stdin is None:
        raise ValueError("stdin is closed: name a file of prompts, or pipe them in")
    if settings.follow and sources.count(STDIN) > 1:
        raise ValueError("stdin is named twice, and --follow would read both at once: give one -")
    if settings.output is None and sys.stdout is None:
        raise ValueError("stdout is closed: name a file for the results with -o")
    check_output(settings.output or STDOUT, sources)
    if settings.emit != "result" and settings.output is not None:
        _check_emission(settings.output, sources)
    if settings.decisions is not None:
        others = [settings.output] if settings.output is not None else []
        check_output(settings.decisions, (*sources, *others), flag="--decisions")
    if settings.summary is not None:
        others = [name for name in (settings.output, settings.decisions) if name is not None]
        check_output(settings.summary, (*sources, *others), flag="--summary")


def _check_emission(output: str, sources: tuple[str, ...]) -> None:
    """The stream goes to stdout, and a results file must never hold any of it."""
    if sys.stdout is None:
        raise ValueError("stdout is closed: --emit needs it")
    check_output(STDOUT, (*sources, output), flag="--emit")
    if os.path.exists(output) and not os.path.isfile(output) and os.path.samestat(os.stat(output), os.fstat(1)):
        raise ValueError(f"-o {output} is stdout, where --emit writes: leave -o out, results come there anyway")


def warnings(settings: Settings, dialect: Dialect) -> list[str]:
    """What is asked for and can't be had, for the user to know at the start."""
    sample = Prompt(id=None, key="", source="", line=0, request={"messages": [{"role": "user", "content": ""}]})
    if not settings.continue_truncated or dialect.continued(sample, "x" * 100) is not None:
        return []
    words = f"dialect {dialect.name} knows no way to ask for the rest of an answer: what breaks off starts over"
    return [f"--continue-truncated: {words}; --dialect names another"]


def checked_url(base_url: str | None) -> str:
    """The base URL without its last slash; never echoes a part of one that may carry a password or key."""
    if not base_url:
        raise ValueError("no --base-url: give the API's address, e.g. https://api.openai.com/v1, or sim:steady")
    scheme, separator, rest = base_url.partition("://")
    if "@" in (rest if separator else base_url).partition("/")[0]:
        raise ValueError("--base-url holds a user or password; give the key by --api-key-env or --api-key-file")
    if not base_url.isprintable() or " " in base_url or len(base_url) > LONGEST_URL:
        raise ValueError("--base-url holds blanks or line ends, or is too long to be one")
    shown = re.split("[?#]", base_url)[0]
    if not separator or scheme.lower() not in ("http", "https"):
        raise ValueError(f"--base-url {shown!r} has no scheme; did you mean https://{shown.lstrip('/:')} ?")
    rest, question, query = rest.partition("?")
    if "#" in rest + query or (question and not AZURE_VERSION.fullmatch(query)):
        words = "holds a query or fragment, which no path can follow; a key goes into --api-key-env or --api-key-file"
        raise ValueError(f"--base-url {shown!r} {words}")
    return f"{scheme.lower()}://{_checked_host(base_url, rest)}{question}{query}"


def _checked_host(base_url: str, rest: str) -> str:
    url = urlsplit(f"http://{rest}")
    try:
        (url.hostname or "").encode("idna")  # what a resolver would do with it: UnicodeError is a ValueError
        fits = bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"--base-url {base_url!r} names no host, or a port that can't be")
    return rest.rstrip("/")


def base_of(url: str, dialect: Dialect) -> str:
    """The base of a URL that may name an endpoint itself, as documentation does; one with a model is a ValueError."""
    if "/models/M" in dialect.about.path and (found := MODEL.search(url)):
        model = found[0].rpartition("/")[2].partition(":")[0]
        raise ValueError(f"--base-url names a model: give --model {model} --base-url {url[: found.start()]}")
    return ENDPOINT.sub("", url)


def is_loopback(base_url: str) -> bool:
    """The host is this machine."""
    return is_loopback_host(urlsplit(base_url).hostname or "")


def read_key(settings: Settings, environment: Mapping[str, str], base_url: str, dialect: Dialect) -> str | None:
    """The API key, or None for a loopback host without one. No message holds what may be a key in the wrong place."""
    if settings.api_key_file is not None:
        return _key_of_file(settings.api_key_file)
    if settings.api_key_env is not None:
        if settings.api_key_env not in environment:
            raise ValueError("--api-key-env takes the name of an environment variable that is set, not the key itself")
        return _usable(environment[settings.api_key_env], "the variable of --api-key-env")
    if is_loopback(base_url):
        return None
    variable = key_variable(dialect, base_url, environment)
    if variable is not None:
        return _usable(environment[variable], f"the variable {variable}")
    customary = f", or set {dialect.about.key_env[0]}" if own_host(dialect, base_url) else ""
    host = urlsplit(base_url).hostname
    raise ValueError(f"no key for {host}: give --api-key-env VARIABLE or --api-key-file FILE{customary}")


def reread_key(settings: Settings) -> str | None:
    """The key that its file holds now; None without a file, or where it can't be read twice (a pipe) or just now."""
    try:
        return key_now(settings)
    except ValueError:
        return None


def key_now(settings: Settings) -> str | None:
    """As `reread_key`; ValueError where there should be a key and is none."""
    path = settings.api_key_file
    if path is None or (os.path.exists(path) and not os.path.isfile(path)):
        return None
    return _key_of_file(path)


def _key_of_file(path: str) -> str:
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"the file of --api-key-file can't be read: {words}") from error
    return _usable(key, "the file of --api-key-file")


def _usable(key: str, source: str) -> str:
    if not key:
        raise ValueError(f"{source} is empty")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"{source} holds no key: it has blanks, line ends or letters that no HTTP header may carry")
    return key


def memory_of(settings: Settings, url: str, key: str | None, say: Callable[[str], None]) -> Memory:
    """What is known of the upstream and key. A simulated upstream is only remembered in a folder that was asked for."""
    simulated = (settings.base_url or "").startswith(SIMULATED)
    if not settings.remember or (simulated and settings.state is None):
        return Memory()
    folder = None if settings.state is None else Path(settings.state)
    return Memory.open(folder, settings.base_url or "" if simulated else url, key, say, forget=settings.forget)


def charge_of(settings: Settings, dialect: Dialect) -> Charge:
    """How LLM tokens are booked: as the user says, else as the dialect's provider does."""
    if settings.charge is None:
        return dialect.charge
    if settings.charge not in CHARGES:
        near = did_you_mean(settings.charge, CHARGES)
        raise ValueError(f"--charge: {settings.charge!r} is none of {', '.join(CHARGES)}{near}")
    return Charge(settings.charge)


def intake_for(settings: Settings, ledger: Ledger) -> Intake:
    """The intake of a run whose results file holds what the ledger says."""
    known = ledger if settings.resume else Ledger()
    return Intake(
        identities=Identities(nonce="" if settings.resume else secrets.token_hex(8)),
        done=known.answered,
        failed=frozenset() if settings.retry_failed else known.failed,
        retried=known.failed if settings.retry_failed else frozenset(),
        known_ids=known.ids,
        text=settings.input_format == "text",
        first=settings.first,
    )


def price_of(settings: Settings, url: str) -> Price:
    """What tokens cost; looked up only for a budget in money. ValueError if that is unknown from the start."""
    if settings.max_cost is None:
        return lambda _, __: 0.0
    prices = Prices.of(url, time.time())
    if settings.model is not None:
        sample = Prompt(id=None, key="", source="", line=0, request={"model": settings.model})
        prices.price(sample, Usage(input_tokens=1, output_tokens=1))
    return prices.price


def sizer_of(settings: Settings, say: Callable[[str], None]) -> Sizer | None:
    """The token estimator that is named; None for our own."""
    name = settings.token_estimator
    return None if name is None else Sizer(name, find(name), say)


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
