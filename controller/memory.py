"""The file in which runs keep what they learned: one for all upstreams and keys of a user.

Many runs may share it. Whoever writes takes the lock, reads what is there now, adds its own and puts a new file in the
place of the old one, so that a reader sees the one or the other, and nobody's knowledge is lost. No trouble with it
ever ends a run: it is said once, and the run goes on without a memory.

A key is in it as a few letters of a slow, salted hash of upstream and key: enough to tell a user's own keys apart,
too few to recognise one by. The address is hashed with it, of which only the host is written: some gateways have
secrets in their paths.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import cattrs
import platformdirs
from attrs import define, evolve, field, frozen

from controller.knowledge import Account, Lessons, Run, Spending
from policies.words import in_one_line

NAME, NEW, LOCK = "limits.json", "limits.json.new", "limits.lock"
VERSION = 1
ROUNDS = 100_000  # of the hash; some 30 ms, once for a run
LETTERS = 6  # of a fingerprint: one in 16 million other keys has the same
LONGEST_FILE = 20_000_000  # bytes
PATIENCE, LOOK_EVERY = 10.0, 0.01  # s for the lock, in all and between two looks


@frozen(kw_only=True)
class _Book:
    """The whole file. accounts: by host and fingerprint."""

    version: int = VERSION
    salt: str = field(factory=lambda: secrets.token_hex(16))
    accounts: dict[str, Account] = field(factory=dict)


_CONVERTER = cattrs.Converter()


@define(eq=False)
class Memory:
    """Of one upstream and key. Made by `open`; no trouble with the file is raised.

    folder: None where nothing is kept. wall_clock: Unix time. `keep` may be called from any thread, one at a time.
    """

    folder: Path | None = None
    url: str = ""
    key: str | None = field(default=None, repr=False)
    say: Callable[[str], None] = lambda _: None
    wall_clock: Callable[[], float] = time.time
    number: str = field(factory=lambda: secrets.token_hex(4))  # of this run
    _known: Account = field(factory=Account, init=False)
    _named: tuple[str, str] = field(default=("", ""), init=False)  # salt, name of the account under it
    _silent: bool = field(default=False, init=False)

    @classmethod
    def open(
        cls, folder: Path | None, url: str, key: str | None, say: Callable[[str], None], *, forget: bool = False
    ) -> Memory:
        """Read what is known. folder: None for the user's own; forget: drop what was learned, of all models."""
        memory = cls(platformdirs.user_state_path("tidegate") if folder is None else folder, url, key, say)
        with memory._saying_faults():
            book = memory._read()
            memory._known = book.accounts.get(memory._name(book), Account())
            if forget:
                memory._forget()
        return memory

    def lessons(self, model: str, now: float) -> Lessons:
        """What was known of a model at the start. now: on the clock that the answer is to be on."""
        wall = self.wall_clock()
        known = Account().plus(self._known, wall).models.get(model, Lessons())
        return known.shifted(now - wall)

    def spent(self, model: str, now: float) -> dict[str, Spending]:
        """What earlier runs may have sent to a model in the last minute, by dimension."""
        wall = self.wall_clock()
        run = Run(at=wall, models={model: self._known.spent(model, wall)})
        return run.shifted(now - wall).models[model]

    def keep(self, models: dict[str, Lessons], run: Run | None, now: float) -> None:
        """Add what this run knows by now, on its own clock; run: None without ceilings."""
        if self.folder is None or not (run or any(models.values())):
            return
        wall = self.wall_clock()
        mine = Account(
            models={name: lessons.shifted(wall - now) for name, lessons in models.items() if lessons},
            runs={} if run is None else {self.number: run.shifted(wall - now)},
        )
        with self._saying_faults(), self._locked():
            book = self._read()
            theirs = book.accounts.get(self._name(book), Account())
            recent = {name: account.plus(Account(), wall) for name, account in book.accounts.items()}
            book = evolve(book, accounts={name: account for name, account in recent.items() if account})
            self._write(book, theirs.plus(mine, wall))

    def _forget(self) -> None:
        with self._locked():
            book = self._read()
            known = book.accounts.get(self._name(book), Account())
            self._known = Account(runs=known.runs)  # a ceiling is the user's: what was sent stays sent
            if known.models:
                self._write(book, self._known)
        limits = sum(len(lessons.limits) for lessons in known.models.values())
        host = _host(self.url)
        self.say(f"--forget: dropped {limits} learned limits of {len(known.models)} models at {host} with this key")

    def _name(self, book: _Book) -> str:
        if self._named[0] != book.salt:
            self._named = (book.salt, account_name(self.url, self.key, book.salt))
        return self._named[1]

    # -- the file

    def _read(self) -> _Book:
        """What is there now; OSError for a file that can't be read. One that holds something else counts as none."""
        assert self.folder is not None
        path = self.folder / NAME
        try:
            with path.open("rb") as file:
                content = file.read(LONGEST_FILE + 1)
        except FileNotFoundError:
            return _Book()
        try:
            return _parsed(content)
        except _NewerError:
            raise
        except Exception as error:  # cattrs raises groups and all that a meddled number can
            self._say_once(f"{path} is damaged, and what it held is lost: {in_one_line(error)}")
            return _Book()

    def _write(self, book: _Book, account: Account) -> None:
        assert self.folder is not None
        book = evolve(book, accounts={**book.accounts, self._name(book): account})
        content = json.dumps(_CONVERTER.unstructure(book), indent=1).encode()
        new = self.folder / NEW  # one name is enough under the lock, and no litter is left by who is killed
        number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.folder / NAME)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        assert self.folder is not None
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / LOCK).open("ab") as lock:  # not the file itself: that one is replaced
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise TimeoutError(errno.ETIMEDOUT, "another run holds its lock") from None
                    time.sleep(LOOK_EVERY)
            yield

    @contextlib.contextmanager
    def _saying_faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._say_once(f"what is learned can't be kept in {self.folder}: {error.strerror or error}")
        except _NewerError as error:
            self._say_once(f"what is learned can't be kept in {self.folder}: {error}")

    def _say_once(self, text: str) -> None:
        if not self._silent:
            self._silent = True
            self.say(text)


class _NewerError(Exception):
    """The file is of a later version of ours, and must not be overwritten."""


def _parsed(content: bytes) -> _Book:
    if len(content) > LONGEST_FILE:
        raise ValueError("it is too long")
    table = json.loads(content)
    version = table.get("version")
    if isinstance(version, int) and version > VERSION:
        raise _NewerError(f"{NAME} was written by a newer tidegate")
    return _CONVERTER.structure(table, _Book)


def account_name(url: str, key: str | None, salt: str) -> str:
    """Host and fingerprint; see the top."""
    secret = f"{url}\n{key or ''}".encode("utf-8", "surrogatepass")
    digest = hashlib.pbkdf2_hmac("sha256", secret, salt.encode(), ROUNDS)
    return f"{_host(url)} {digest.hex()[:LETTERS]}"


def _host(url: str) -> str:
    """Of a simulated upstream, which has none, the whole of it."""
    return urlsplit(url).netloc or url
