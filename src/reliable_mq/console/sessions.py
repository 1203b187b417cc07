"""Sessions of browsers: a signed cookie, and the token that belongs to it. Nothing is kept.

Receives a user and a key; returns texts. A session ends at its time, or when the key changes. The
token goes into each form: another site can send a form, and cannot know the token.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections import deque
from typing import NamedTuple

from reliable_mq.console.users import Role

COOKIE = "reliable_mq_console"
SESSION_SECONDS = 12 * 3600.0
FAILED_MAX, FAILED_SECONDS = 5, 60.0
"""So many wrong passwords in so many seconds; then nobody at this address can log in."""
KNOWN_MAX = 10_000


class LogInSession(NamedTuple):
    """What a cookie says. `user` "": nobody has logged in, and the session only has a token."""

    nonce: str
    user: str
    until: float


class Person(NamedTuple):
    """Who asks, what they may do, and the token of their forms."""

    name: str
    role: Role
    token: str


class Seal:
    """Signs and reads cookies.

    Args:
        key: the secret. Processes that share it accept each other's sessions.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def cookie(self, session: LogInSession) -> str:
        """Return the text of a cookie."""
        body = base64.urlsafe_b64encode(json.dumps(session).encode()).decode().rstrip("=")
        return f"{body}.{self._mac('session', body)}"

    def session(self, cookie: str, now: float) -> LogInSession | None:
        """Return the session of a cookie; None: it is not ours, or it has ended."""
        body, _, mac = cookie.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac("session", body).encode()):
            return None
        try:
            padded = body + "=" * (-len(body) % 4)
            nonce, user, until = json.loads(base64.urlsafe_b64decode(padded))
        except (binascii.Error, ValueError, TypeError):
            return None
        return LogInSession(str(nonce), str(user), float(until)) if now < float(until) else None

    def token(self, session: LogInSession) -> str:
        """Return the token of a session's forms."""
        return self._mac("token", session.nonce)

    def is_token(self, session: LogInSession, given: str) -> bool:
        """Whether a form has the token of a session."""
        return hmac.compare_digest(given.encode(), self.token(session).encode())

    def sealed(self, purpose: str, body: bytes) -> str:
        """Return bytes as a text that only this key can have made, for one purpose."""
        text = base64.urlsafe_b64encode(body).decode()
        return f"{text}.{self._mac(purpose, text)}"

    def opened(self, purpose: str, text: str) -> bytes | None:
        """Return the bytes of `sealed`; None: this key has not made the text."""
        body, _, mac = text.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(purpose, body).encode()):
            return None
        return base64.urlsafe_b64decode(body)

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def new_session(user: str, now: float) -> LogInSession:
    """Return a session that nobody can guess."""
    return LogInSession(secrets.token_urlsafe(16), user, now + SESSION_SECONDS)


class FailedLogIns:
    """Counts wrong passwords by address.

    Invariant: it knows at most `KNOWN_MAX` addresses.
    """

    def __init__(self) -> None:
        self._failed: dict[str, deque[float]] = {}

    def wait(self, address: str, now: float) -> float:
        """Return for how many seconds an address has to wait; 0: it may try."""
        times = self._failed.get(address, deque())
        while times and times[0] <= now - FAILED_SECONDS:
            times.popleft()
        return times[0] + FAILED_SECONDS - now if len(times) >= FAILED_MAX else 0.0

    def note(self, address: str, now: float) -> None:
        """Note a wrong password."""
        if address not in self._failed and len(self._failed) >= KNOWN_MAX:
            del self._failed[next(iter(self._failed))]
        self._failed.setdefault(address, deque(maxlen=FAILED_MAX)).append(now)
