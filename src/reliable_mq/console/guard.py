"""Stands before all pages: who asks, whether they may, and the headers of every answer.

Without users, everybody at this machine is an admin. Then a page answers only to a name of this
machine: a site of somebody else could point its own name at 127.0.0.1, and read the pages.
"""

import base64
import binascii
import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reliable_mq.console.asyncio_threads import in_thread
from reliable_mq.console.figures import ConsoleFigures
from reliable_mq.console.sessions import (
    OIDC_SECONDS,
    SESSION_SECONDS,
    EndedSessions,
    LogInSession,
    LogInTries,
    OidcPerson,
    Person,
    Seal,
    new_session,
)
from reliable_mq.console.users import ConsoleUser, Role, UserFile
from reliable_mq.errors import ConfigurationError
from reliable_mq.telemetry import application_events

FORM_BYTES_MAX, FORM_FIELDS_MAX = 1_048_576, 2_000
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_OWN_SITES = ("", "same-origin", "none")
"""What a browser says about a request of our own pages; "": it is too old to say it."""
_OF_PROXIES = ("x-forwarded-for", "x-real-ip", "forwarded")
"""What a proxy at this machine says of a visitor: such a visitor is elsewhere."""
AT_ONCE = ("/static/", "/healthz")
"""Who asks does not matter, and no file and no thread is waited for."""
OIDC_PATH = "/log-in/oidc"
FREE_PATHS = ("/readyz", "/log-in", OIDC_PATH, f"{OIDC_PATH}/back")

log = logging.getLogger(__name__)

Allow = Callable[[HTTPConnection], tuple[str, Role] | None]
"""Returns the name and the role of who asks; None: nobody who may."""


class Oidc(NamedTuple):
    """Log-in at a provider: its host for people, and what its sessions have as their proof."""

    host: str
    proof: str


class Door(NamedTuple):
    """How people get in: users who log in, here or at a provider; a function; everybody here.

    `local_name`: the name in the audit if there are no users.
    """

    users: UserFile | None
    allow: Allow | None
    local_name: str
    oidc: Oidc | None = None

    @property
    def is_local(self) -> bool:
        """Whether everybody at this machine is an admin, and nobody else gets in."""
        return self.users is None and self.allow is None and self.oidc is None


class PageGuard:
    """An ASGI application around the pages.

    Args:
        app: the pages.
        door: how people get in.
        seal: signs the sessions.
        figures: counts the answers.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        app: ASGIApp,
        door: Door,
        seal: Seal,
        figures: ConsoleFigures,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._door = door
        self._seal = seal
        self._figures = figures
        self._now = now
        self._tries = LogInTries()
        self._ended = EndedSessions()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        session, cookie = self._session(request)
        begun, is_page = time.monotonic(), not page_path(request).startswith(AT_ONCE)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                if is_page:
                    self._figures.answered(message["status"], time.monotonic() - begun)
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                needs = is_page and cookie  # an answer that caches may keep has no cookie
                if needs and f"{self._seal.cookie_name}=" not in headers.get("set-cookie", ""):
                    headers.append("Set-Cookie", cookie)
            await send(message)

        refused = self._refused_at_once(request, session)
        if refused is None and is_page:
            refused = await in_thread(self._refused_or_fault, request, session)
        await (refused or self._app)(scope, receive, guarded)

    def _session(self, request: Request) -> tuple[LogInSession, str]:
        """Return the session, and the cookie to set; "": it has one."""
        given = request.cookies.get(self._seal.cookie_name, "")
        known = self._seal.session(given, self._now())
        if known is not None and not self._ended.has(known):
            return known, ""
        made = new_session("", self._now())
        return made, self.cookie(request, made)

    def cookie(self, request: Request, session: LogInSession) -> str:
        """Return the header that sets the cookie of a session."""
        name, text = self._seal.cookie_name, self._seal.cookie(session)
        return self.cookie_line(request, name, text, int(SESSION_SECONDS))

    @staticmethod
    def cookie_line(request: Request, name: str, text: str, seconds: int, path: str = "") -> str:
        """Return the header that sets a cookie; no script can read it.

        Args:
            request: the request that is answered.
            name: of the cookie.
            text: its value.
            seconds: how long the browser keeps it.
            path: the pages that get it; "": all pages of this console.
        """
        path = path or request.scope.get("root_path", "") or "/"
        # A proxy with TLS says it. Who forges it only makes the cookie of their own stricter.
        proxied = request.headers.get("x-forwarded-proto", "")
        secure = "; Secure" if "https" in (request.scope.get("scheme"), proxied) else ""
        # Lax: a link in a chat leads to the page. No request that changes something is a GET.
        return f"{name}={text}; Path={path}; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}"

    def _refused_or_fault(self, request: Request, session: LogInSession) -> Response | None:
        try:
            return self._refused(request, session)
        except ConfigurationError as error:
            application_events.CONSOLE_USERS_UNREADABLE.log(log, error=error)
            return PlainTextResponse("the file of users cannot be read: see the log", 503)

    def _refused_at_once(self, request: Request, session: LogInSession) -> Response | None:
        """Return the answer to who is at another machine and may not be; it waits for nothing."""
        request.state.session, request.state.guard = session, self
        request.state.person = None
        if self._door.is_local:
            peer = request.client.host if request.client else "127.0.0.1"
            if not (_is_here(request.headers.get("host", "")) and _is_loopback(peer)):
                return PlainTextResponse(
                    "without users, the console answers this machine only, at 127.0.0.1 or"
                    " localhost",
                    421,
                )
            if any(name in request.headers for name in _OF_PROXIES):
                text = "without users, the console answers no proxy: start it with --users"
                return PlainTextResponse(text, 421)
        return None

    def _refused(self, request: Request, session: LogInSession) -> Response | None:
        """Return the answer to who may not see the page; None: they may."""
        path = page_path(request)
        found = self._who(request, session)
        if found is not None:
            request.state.person = Person(*found, self._seal.token(session))
            return None
        if path in FREE_PATHS:
            return None
        if self._door.allow is not None:
            return PlainTextResponse("the application does not let you see this page", 403)
        if path == "/metrics":
            basic = {"WWW-Authenticate": 'Basic realm="reliable-mq"'}
            return PlainTextResponse("a user and a password are needed", 401, basic)
        if request.method != "GET":
            return PlainTextResponse("your session has ended: log in again, nothing was done", 401)
        query = request.scope["query_string"].decode("latin-1")
        wanted = quote(path + (f"?{query}" if query else ""), safe="")
        return RedirectResponse(f"{request.scope.get('root_path', '')}/log-in?to={wanted}", 303)

    def _who(self, request: Request, session: LogInSession) -> tuple[str, Role] | None:
        door = self._door
        if door.allow is not None:
            return door.allow(request)
        if door.is_local:
            return door.local_name, Role.ADMIN
        if session.role:
            is_ours = door.oidc is not None and session.proof == door.oidc.proof
            return (session.user, Role(session.role)) if is_ours else None
        if door.users is None:
            return None
        user = door.users.users().get(session.user) if session.user else None
        if user is not None and self._seal.proof(user.secret) != session.proof:
            user = None  # the password was changed
        if user is None and page_path(request) == "/metrics":
            user = self._basic(request)
        return None if user is None else (user.name, user.role)

    def _basic(self, request: Request) -> ConsoleUser | None:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            return None
        try:
            name, _, password = base64.b64decode(given).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return self.log_in(request, name, password)[0]

    @property
    def has_users(self) -> bool:
        """Whether people log in here."""
        return self._door.users is not None or self._door.oidc is not None

    @property
    def ways(self) -> dict[str, Any]:
        """The ways to log in, for a page: by a password, and at which provider."""
        door = self._door
        return {
            "has_passwords": door.users is not None,
            "provider": door.oidc.host if door.oidc is not None else "",
        }

    def note_refused(self) -> None:
        """Count somebody whom the provider's answer does not let in."""
        self._figures.log_in_refused()

    def begin_try(self, request: Request) -> float:
        """Count a try to log in; return how many seconds the address has to wait, 0: it may."""
        return self._tries.begin(request.client.host if request.client else "", self._now())

    def forget_try(self, request: Request) -> None:
        """Take the newest try back: it was right."""
        self._tries.forget(request.client.host if request.client else "")

    def is_in_file(self, name: str) -> bool:
        """Whether the file of users has this name."""
        return self._door.users is not None and name in self._door.users.users()

    def log_in(self, request: Request, name: str, password: str) -> tuple[ConsoleUser | None, str]:
        """Return the user of a name and a password, or None and why not."""
        if self._door.users is None:
            return None, "nobody logs in here"
        address, now = request.client.host if request.client else "", self._now()
        if (wait := self._tries.begin(address, now)) > 0:
            self._figures.log_in_refused()
            return None, f"too many wrong passwords: try again in {wait:.0f} s"
        user = self._door.users.checked(name, password)
        if user is None:
            self._figures.log_in_refused()
            return None, "there is no such user, or the password is another one"
        self._tries.forget(address)
        return user, ""

    def begin(self, request: Request, user: ConsoleUser | None, response: Response) -> None:
        """Begin a session of a user; None: end the session."""
        if user is None and request.state.person is not None:
            self._ended.add(request.state.session, self._now())
        proof = self._seal.proof(user.secret) if user else ""
        session = new_session(user.name if user else "", self._now(), proof)
        response.headers.append("Set-Cookie", self.cookie(request, session))

    def begin_by_oidc(self, request: Request, person: OidcPerson, response: Response) -> None:
        """Begin a session of somebody whom the provider knows."""
        if self._door.oidc is None:
            return
        session = new_session(person.name, self._now(), self._door.oidc.proof)
        until = self._now() + OIDC_SECONDS
        session = session._replace(role=person.role.value, until=until)
        response.headers.append("Set-Cookie", self.cookie(request, session))

    def is_token(self, session: LogInSession, given: str) -> bool:
        """Whether a form has the token of its session."""
        return self._seal.is_token(session, given)

    def token(self, session: LogInSession) -> str:
        """Return the token of a session's forms."""
        return self._seal.token(session)


def _is_here(host: str) -> bool:
    """Whether a Host names this machine. Another site can point a name of its own at 127.0.0.1.

    An address of a loopback cannot be pointed elsewhere, and so may be any of them.
    """
    name, _, port = host.rpartition(":")
    name = name if name and port.isdigit() else host
    return name == "localhost" or _is_loopback(name.removeprefix("[").removesuffix("]"))


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def page_path(request: HTTPConnection) -> str:
    """Return the path of a page below the place where the console is mounted."""
    path, root = request.scope["path"], request.scope.get("root_path", "")
    return str(path.removeprefix(root)) if root and path.startswith(root) else str(path)


def inside(path: str) -> str:
    """Return a path of this console; "": it is the address of another site."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if is_ours and path.isprintable() and "\\" not in path else ""


async def form_of(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form that was sent from one of our pages.

    Raises:
        HTTPException: 400: it has too many fields. 413: it is too long. 403: another site has sent
            it, or it has not the token of its session. 415: it is in another format.
    """
    if request.headers.get("sec-fetch-site", "") not in _OWN_SITES:
        raise HTTPException(403, "this form was sent from another site; nothing was done")
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "a form is sent as application/x-www-form-urlencoded")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise HTTPException(413, f"a form has {FORM_BYTES_MAX} bytes at most")
    fields: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(
            body.decode("utf-8", "replace"),
            keep_blank_values=True,
            max_num_fields=FORM_FIELDS_MAX,
        )
    except ValueError as error:
        raise HTTPException(400, f"a form has {FORM_FIELDS_MAX} fields at most") from error
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    guard: PageGuard = request.state.guard
    if not guard.is_token(request.state.session, (fields.pop("token", None) or [""])[0]):
        raise HTTPException(403, "this form was not sent from a page of yours: load the page again")
    return fields


def must_be(request: Request, role: Role) -> Person:
    """Return who asks.

    Raises:
        HTTPException: 403: they may not do that.
    """
    person: Person | None = request.state.person
    if person is None or not person.role.may(role):
        have = person.role.value if person else "nobody"
        raise HTTPException(403, f"this needs the role {role.value}; you are {have}")
    return person


Fields = Mapping[str, Any]
