"""Sessions of browsers: a signed cookie, and the token that belongs to it.

Nothing is kept of a session, but that it was ended.

Receives a user and a key; returns texts. A session ends at its time, or when the key changes. The
token goes into each form: another site can send a form, and cannot know the token.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import secrets
import threading
from collections import deque
from typing import NamedTuple

from reliable_mq.console.users import Role

COOKIE = "reliable_mq_console"
"""What the name of the cookie begins with; see `Seal.cookie_name`."""
SESSION_SECONDS = 12 * 3600.0
OIDC_SECONDS = 3_600.0
"""A session of a provider's person: then it is asked again, as it may have taken the role away."""
FAILED_MAX, FAILED_SECONDS = 5, 60.0
"""So many tries in so many seconds; then nobody at this address can log in."""
KNOWN_MAX = 10_000


class LogInSession(NamedTuple):
    """What a cookie says. `user` "": nobody has logged in, and the session only has a token.

    `proof`: comes from the password of the user. The session ends when the password changes.
    `role`: what a provider of OpenID Connect has said; "": the user is one of the file.
    """

    nonce: str
    user: str
    until: float
    proof: str = ""
    role: str = ""


class Person(NamedTuple):
    """Who asks, what they may do, and the token of their forms."""

    name: str
    role: Role
    token: str


class OidcPerson(NamedTuple):
    """Who has logged in at a provider, what they may do, and the page that they wanted."""

    name: str
    role: Role
    to: str


class Seal:
    """Signs and reads cookies.

    Args:
        key: the secret. Processes that share it accept each other's sessions.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.cookie_name = f"{COOKIE}_{self._mac('name', '')[:8]}"
        """Browsers send one cookie to all ports of a host. So two consoles have two names."""

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
            nonce, user, until, proof, role = json.loads(base64.urlsafe_b64decode(padded))
        except (binascii.Error, ValueError, TypeError):
            return None
        session = LogInSession(str(nonce), str(user), float(until), str(proof), str(role))
        return session if now < session.until else None

    def proof(self, secret: str) -> str:
        """Return what a session keeps of the secret of its user: nobody can find the secret."""
        return self._mac("proof", secret)[:16]

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


def new_session(user: str, now: float, proof: str = "") -> LogInSession:
    """Return a session that nobody can guess."""
    return LogInSession(secrets.token_urlsafe(16), user, now + SESSION_SECONDS, proof)


class EndedSessions:
    """Sessions that were ended by a log-out, until their time is over.

    A cookie that somebody has copied is nobody's then, in this process.

    Invariant: it knows at most `KNOWN_MAX` sessions.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}

    def add(self, session: LogInSession, now: float) -> None:
        """End a session."""
        with self._lock:
            self._ends[session.nonce] = session.until
            while (first := next(iter(self._ends))) != session.nonce and (
                len(self._ends) > KNOWN_MAX or self._ends[first] <= now
            ):
                del self._ends[first]

    def has(self, session: LogInSession) -> bool:
        """Whether a session was ended."""
        return session.nonce in self._ends


class LogInTries:
    """Counts the tries to log in by address. A try counts until its password was right.

    It counts before the password is looked at: many requests at once have no more tries than one
    after the other. An IPv6 host has a network of its own, so its first 64 bits count.

    Invariant: it knows at most `KNOWN_MAX` addresses.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tries: dict[str, deque[float]] = {}

    def begin(self, address: str, now: float) -> float:
        """Count a try; return for how many seconds the address has to wait, 0: it may try."""
        place = _network(address)
        with self._lock:
            times = self._tries.setdefault(place, deque(maxlen=FAILED_MAX))
            while times and times[0] <= now - FAILED_SECONDS:
                times.popleft()
            if len(times) >= FAILED_MAX:
                return times[0] + FAILED_SECONDS - now
            times.append(now)
            while len(self._tries) > KNOWN_MAX:
                del self._tries[next(iter(self._tries))]
            return 0.0

    def forget(self, address: str) -> None:
        """Take the newest try back: its password was right."""
        place = _network(address)
        with self._lock:
            times = self._tries.get(place)
            if times:
                times.pop()
            if not times:
                self._tries.pop(place, None)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False))
    return str(found)
