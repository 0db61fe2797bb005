"""Which proxy the environment asks for; loopback always goes direct.

A proxy variable that catches 127.0.0.1 answers 502 in the name of a server next door, which then reads as an overloaded
upstream (https://github.com/THUDM/slime/pull/1714).
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy's URL for `url`; None means direct. Lower-case variables win, as in curl."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if is_loopback_host(host) or _is_exempt(host, parts.port, _variable(environ, "no_proxy")):
        return None
    proxy = _variable(environ, f"{parts.scheme}_proxy") or _variable(environ, "all_proxy")
    if not proxy:
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def is_loopback_host(host: str) -> bool:
    """The name or address is this machine's own."""
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761, section 6.3
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_exempt(host: str, port: int | None, no_proxy: str) -> bool:
    for entry in no_proxy.lower().replace(",", " ").split():
        if entry == "*" or _in_network(host, entry):
            return True
        name, _, entry_port = entry.partition(":")
        name = name.removeprefix("*").removeprefix(".")
        if (host == name or host.endswith(f".{name}")) and entry_port in ("", str(port or "")):
            return True
    return False


def _in_network(host: str, entry: str) -> bool:
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return False
