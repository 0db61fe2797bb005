"""Foreign exceptions as failures of an attempt, by one table, in words that name the peer and the cause."""

from __future__ import annotations

import socket
import ssl
import zlib
from collections.abc import Iterator

import httpx
from attrs import frozen

from controller.outcome import Kind


@frozen
class Meaning:
    """What an exception stands for before and after the head of the answer came."""

    before: Kind
    after: Kind


# Not in here, so that they crash: PoolTimeout (no pool of ours waits), LocalProtocolError, UnsupportedProtocol (bugs).
FAILURES: dict[type[Exception], Meaning] = {
    httpx.ConnectError: Meaning(Kind.CONNECT, Kind.CONNECT),
    httpx.ConnectTimeout: Meaning(Kind.CONNECT, Kind.CONNECT),
    httpx.ProxyError: Meaning(Kind.CONNECT, Kind.CONNECT),
    httpx.ReadError: Meaning(Kind.NETWORK, Kind.TRUNCATED),
    httpx.WriteError: Meaning(Kind.NETWORK, Kind.TRUNCATED),
    httpx.CloseError: Meaning(Kind.NETWORK, Kind.TRUNCATED),
    httpx.RemoteProtocolError: Meaning(Kind.NETWORK, Kind.TRUNCATED),
    httpx.ReadTimeout: Meaning(Kind.TIMEOUT, Kind.TIMEOUT),
    httpx.WriteTimeout: Meaning(Kind.TIMEOUT, Kind.TIMEOUT),
    httpx.DecodingError: Meaning(Kind.MALFORMED, Kind.MALFORMED),  # ours, too: an answer that has no end
    zlib.error: Meaning(Kind.MALFORMED, Kind.MALFORMED),
}
CAUGHT = tuple(FAILURES)


def kind_of(error: Exception, *, answered: bool) -> Kind:
    """The kind of failure. answered: the head of the answer had come."""
    meaning = next(FAILURES[kind] for kind in type(error).__mro__ if kind in FAILURES)
    return meaning.after if answered else meaning.before


def words_for(error: Exception, url: httpx.URL) -> str:
    """One line: who, and what went wrong, from the deepest cause that says so."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    peer = f"{host}:{url.port or (443 if url.scheme == 'https' else 80)}"
    if isinstance(error, httpx.ProxyError):
        return f"proxy error on the way to {peer}: {error}"
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                return f"certificate of {peer} is not trusted: {cause.verify_message}"
            case ssl.SSLError():
                return f"TLS with {peer} failed: {cause.reason or cause}"
            case socket.gaierror():
                return f"host {host} not found: {cause.strerror}"
            case ConnectionRefusedError():
                return f"connection refused by {peer}"
            case ConnectionResetError():
                return f"connection reset by {peer}"
            case OSError(strerror=str() as reason):
                return f"{peer}: {reason.lower()}"
    return f"{peer}: {str(error) or type(error).__name__}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]  # one per address that was tried; the first says as much as all
        yield cause
        cause = cause.__cause__ or cause.__context__
