"""Asks a provider of OpenID Connect who somebody is: the code flow with PKCE, state and nonce.

Receives what a browser brings back. Hands on a name and a role, or says why not. A token counts
only if the provider has signed it, for this console, for this log-in, and not long ago. It keeps
the keys of the provider for an hour, and no token.

Sources: OpenID Connect Core 1.0, 3.1; RFC 7636 (PKCE); RFC 9207 (`iss` beside the code).
"""

import base64
import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
import msgspec
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from reliable_mq.console.oidc_endpoints import (
    KEPT_SECONDS,
    REQUEST_SECONDS,
    KnownEndpoints,
    check_address,
)
from reliable_mq.console.sessions import OidcPerson
from reliable_mq.console.users import Role
from reliable_mq.decodable import decodable
from reliable_mq.errors import ConfigurationError, ReliableMQError, Unavailable
from reliable_mq.plain_text import printable

BACK = "/log-in/oidc/back"
"""Where the provider sends a browser back to, below the address of the console."""
LOG_IN_SECONDS = 600.0
"""A log-in at the provider takes at most this time."""
KEYS_AGAIN_SECONDS = 60.0
ANSWER_BYTES_MAX = 1 << 20
CLOCK_SECONDS = 60
"""So much the clocks of provider and console may differ."""
NAME_LENGTH_MAX = 127
STATES_MAX = 10_000
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
)
"""All of them need the private key of the provider. A shared secret signs no log-in."""


class OidcRefused(ReliableMQError):
    """Somebody does not get in; the text says why."""


@dataclass(frozen=True, kw_only=True)
class OidcSettings:
    """A provider of OpenID Connect, and what its people may do here.

    Attributes:
        issuer: its address, as its tokens name it.
        client_id: what this console is called there.
        client_secret: the console's secret there; "": it has none, and PKCE alone protects a code.
        public_url: the address of this console for browsers, with the place where it is mounted.
            `/log-in/oidc/back` below it is the redirect address that the provider has to know.
        roles: a value of the claim -> the role. Nobody without such a value gets in.
        claim: the claim of the ID token with these values. A dot leads into an object, as in
            "realm_access.roles".
        name_claim: the claim with the name for the audit; without it, the subject.
        scope: what is asked for.

    Raises:
        ConfigurationError: an address is not HTTPS, or something is missing.
    """

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    public_url: str
    roles: Mapping[str, Role]
    claim: str = "groups"
    name_claim: str = "preferred_username"
    scope: str = "openid profile email"

    def __post_init__(self) -> None:
        for name in ("issuer", "public_url"):
            check_address(name, getattr(self, name))
        for name in ("client_id", "roles", "claim"):
            if not getattr(self, name):
                raise ConfigurationError(f"{name} of the log-in by OIDC is missing")

    @property
    def proof(self) -> str:
        """Text that changes with the settings: sessions of other settings end."""
        roles = sorted((value, role.value) for value, role in self.roles.items())
        told = repr((self.issuer, self.client_id, self.claim, self.name_claim, roles))
        return hashlib.sha256(told.encode()).hexdigest()[:16]


@decodable
class BegunLogIn(msgspec.Struct, frozen=True, kw_only=True):
    """A log-in that a browser has begun; it keeps this, sealed."""

    state: str
    nonce: str
    verifier: str
    to: str
    until: float


class OidcProvider:
    """The provider.

    Invariant: a state that has come back once is not accepted again.

    Args:
        settings: what it is, and what its people may do.
        now: seconds since the epoch.
    """

    def __init__(self, settings: OidcSettings, now: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self._now = now
        self._client: httpx2.Client | None = None
        self._lock = threading.Lock()
        self._endpoints = KnownEndpoints(settings.issuer, self._read, now)
        self._keys: tuple[float, KeySet] | None = None
        self._used: dict[str, float] = {}

    @property
    def host(self) -> str:
        """The host of the provider, for people."""
        return urlsplit(self.settings.issuer).hostname or ""

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends a browser back to."""
        return self.settings.public_url.rstrip("/") + BACK

    def begin(self, to: str) -> tuple[str, BegunLogIn]:
        """Return the address at the provider, and what the browser has to bring back.

        Raises:
            Unavailable: the provider does not answer, or not as it should.
        """
        begun = BegunLogIn(
            state=secrets.token_urlsafe(24),
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            to=to,
            until=self._now() + LOG_IN_SECONDS,
        )
        challenge = hashlib.sha256(begun.verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": self.settings.scope,
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": base64.urlsafe_b64encode(challenge).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        address = self._endpoints.known().authorization_endpoint
        return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}", begun

    def begun(self, kept: BegunLogIn | None, answer: Mapping[str, str]) -> BegunLogIn:
        """Return the log-in that an answer belongs to.

        Args:
            kept: what the browser has kept; None: nothing that this console has made.
            answer: the parameters of the address that it was sent back to.

        Raises:
            OidcRefused: it belongs to none that this browser has begun here.
        """
        if kept is None or self._now() > kept.until:
            raise OidcRefused("this log-in was not begun here, or too long ago: begin it again")
        if not hmac.compare_digest(kept.state.encode(), answer.get("state", "").encode()):
            raise OidcRefused("the answer belongs to another log-in (its state is another one)")
        return kept

    def finish(self, begun: BegunLogIn, answer: Mapping[str, str]) -> OidcPerson:
        """Return who has logged in.

        Args:
            begun: the log-in that the answer belongs to.
            answer: see `begun`.

        Raises:
            OidcRefused: they do not get in.
            Unavailable: the provider does not answer, or not as it should.
        """
        now = self._now()
        self._use(begun.state, now)
        if answer.get("iss", self.settings.issuer) != self.settings.issuer:
            raise OidcRefused("the answer is of another issuer")
        if "error" in answer:
            said = answer.get("error_description") or answer["error"]
            raise OidcRefused(f"{self.host} says: {printable(said, 200)}")
        if not answer.get("code"):
            raise OidcRefused("the answer has no code")
        claims = self._claims(self._id_token(answer["code"], begun.verifier), begun.nonce, now)
        return OidcPerson(self._name(claims), self._role(claims), begun.to)

    def _use(self, state: str, now: float) -> None:
        with self._lock:
            for each in [each for each, until in self._used.items() if until < now]:
                del self._used[each]
            if state in self._used or len(self._used) >= STATES_MAX:
                raise OidcRefused("this log-in has ended already: begin it again")
            self._used[state] = now + LOG_IN_SECONDS

    def _id_token(self, code: str, verifier: str) -> str:
        settings = self.settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "client_id": settings.client_id,
            "code_verifier": verifier,
        }
        account = (settings.client_id, settings.client_secret) if settings.client_secret else None
        found = self._read(self._endpoints.known().token_endpoint, form, account)
        token = found.get("id_token")
        if not isinstance(token, str):
            raise OidcRefused(f"{self.host} gave no ID token: the scope has to have openid")
        return token

    def _claims(self, token: str, nonce: str, now: float) -> dict[str, Any]:
        """Return what a token says, if it is meant for this log-in."""
        try:
            claims = self._decoded(token)
            times = {name: jwt.ClaimsOption(essential=True) for name in ("exp", "iat")}
            jwt.JWTClaimsRegistry(now=int(now), leeway=CLOCK_SECONDS, **times).validate(claims)
        except (JoseError, ValueError, TypeError) as error:
            why = printable(str(error) or type(error).__name__, 200)
            raise OidcRefused(f"the token of {self.host} does not count: {why}") from error
        ours, audience = self.settings.client_id, claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        is_ours = ours in audiences and claims.get("azp", ours) == ours
        if claims.get("iss") != self.settings.issuer:
            raise OidcRefused("the token is of another issuer")
        if not is_ours or (len(audiences) > 1 and "azp" not in claims):
            raise OidcRefused("the token is meant for another audience")
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise OidcRefused("the token belongs to another log-in (its nonce is another one)")
        if not isinstance(claims.get("sub"), str) or not claims["sub"]:
            raise OidcRefused("the token has no subject")
        return claims

    def _decoded(self, token: str) -> dict[str, Any]:
        try:
            return dict(jwt.decode(token, self._known_keys(KEPT_SECONDS), ALGORITHMS).claims)
        except InvalidKeyIdError:  # the provider has new keys
            keys = self._known_keys(KEYS_AGAIN_SECONDS)
            return dict(jwt.decode(token, keys, ALGORITHMS).claims)

    def _name(self, claims: Mapping[str, Any]) -> str:
        found = claims.get(self.settings.name_claim)
        name = found if isinstance(found, str) and found.strip() else claims["sub"]
        return printable(name.strip(), NAME_LENGTH_MAX)

    def _role(self, claims: Mapping[str, Any]) -> Role:
        found: Any = claims
        for part in self.settings.claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        values = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        known = self.settings.roles
        roles = [known[each] for each in values if isinstance(each, str) and each in known]
        if not roles:
            raise OidcRefused(
                f"{self.host} knows you, and you have no role in this console: its claim"
                f" {self.settings.claim} has none of the values that give one"
            )
        return max(roles, key=[*Role].index)

    def _known_keys(self, age_max: float) -> KeySet:
        """Return the keys that sign tokens, not older than an age."""
        now = self._now()
        with self._lock:
            kept = self._keys
        if kept is not None and now < kept[0] + age_max:
            return kept[1]
        found = self._read(self._endpoints.known().jwks_uri)
        some = found.get("keys")
        rows = [
            each
            for each in (some if isinstance(some, list) else [])
            if isinstance(each, dict)
            and each.get("kty") in ("RSA", "EC", "OKP")
            and each.get("use", "sig") == "sig"
        ]
        if not rows:
            raise Unavailable(f"{self.host} has no key that signs")
        try:
            keys = KeySet.import_key_set({"keys": rows})
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"the keys of {self.host} cannot be read: {error}") from error
        with self._lock:
            self._keys = (now, keys)
        return keys

    def _read(
        self,
        address: str,
        form: Mapping[str, str] | None = None,
        account: tuple[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the JSON object at an address; with a form, it is sent."""
        body = bytearray()
        auth = httpx2.BasicAuth(*account) if account else None
        try:
            method = "GET" if form is None else "POST"
            with self._open_client().stream(method, address, data=form, auth=auth) as response:
                for part in response.iter_bytes():
                    body += part
                    if len(body) > ANSWER_BYTES_MAX:
                        raise Unavailable(f"the answer of {self.host} is too long")
            status = response.status_code
        except httpx2.HTTPError as error:
            why = printable(str(error) or type(error).__name__, 200)
            raise Unavailable(f"{self.host} does not answer: {why}") from error
        try:
            found = msgspec.json.decode(bytes(body))
        except msgspec.DecodeError:
            found = None
        if form is not None and status in (400, 401) and isinstance(found, dict):
            raise OidcRefused(
                f"{self.host} refused the code: {printable(str(found.get('error')), 99)}"
            )
        if status != 200 or not isinstance(found, dict):
            raise Unavailable(f"{self.host} answers with {status}, or not in JSON")
        return found

    def _open_client(self) -> httpx2.Client:
        """Return the client of all requests. An application that starts again gets a new one."""
        with self._lock:
            if self._client is None:
                self._client = httpx2.Client(timeout=REQUEST_SECONDS, follow_redirects=False)
            return self._client

    def close(self) -> None:
        """Close the connections to the provider."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
