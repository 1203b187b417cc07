"""A small provider of OpenID Connect over HTTP, which can be told to answer wrongly.

It keeps the rules that a provider has: a code is good once, for its client, its redirect address
and its PKCE verifier.
"""

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from reliable_mq.console.http_oidc import OidcSettings
from reliable_mq.console.users import Role

ROLES = {"staff": Role.VIEWER, "on-call": Role.OPERATOR, "root": Role.ADMIN}
PUBLIC = "http://127.0.0.1"
CLIENT, SECRET = "console", "s3cret-of-the-console"
PEOPLE: dict[str, dict[str, Any]] = {
    "vera": {"groups": ["staff"]},
    "otto": {"groups": ["staff", "on-call"]},
    "ada": {"realm_access": {"roles": ["root"]}, "groups": "on-call"},
    "eve": {"groups": ["sales"]},
}


class Provider:
    """The provider. Its fields say what it does wrongly."""

    def __init__(self) -> None:
        self.key: Any = _own_key()
        self.algorithm = "RS256"
        self.signed_by: Any = None  # another key
        self.told: dict[str, Any] = {}  # claims that replace the right ones; None: left out
        self.discovered: dict[str, Any] = {}
        self.keys: dict[str, Any] | None = None
        self.raw_token: str | None = None
        self.asked: list[dict[str, str]] = []
        self.issuer = ""
        self.person = "otto"  # who has logged in at the provider, for a real browser
        self._codes: dict[str, dict[str, str]] = {}

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        } | self.discovered

    def public_keys(self) -> dict[str, Any]:
        return self.keys or dict(KeySet([self.key]).as_dict(private=False))

    def authorized(self, address: str, person: str) -> str:
        """Do what a browser does with somebody who logs in; return where it is sent back to."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked | {"person": person}
        answer = {"code": code, "state": asked["state"], "iss": self.issuer}
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def token(self, form: dict[str, str], account: str) -> tuple[int, dict[str, Any]]:
        """Answer to who brings a code."""
        self.asked.append(form)
        asked = self._codes.pop(form.get("code", ""), None)
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        shown = base64.urlsafe_b64encode(challenge).decode().rstrip("=")
        expected = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if account != f"Basic {expected}":
            return 401, {"error": "invalid_client"}
        if (
            asked is None
            or shown != asked["code_challenge"]
            or form["redirect_uri"] != asked["redirect_uri"]
            or form["grant_type"] != "authorization_code"
        ):
            return 400, {"error": "invalid_grant"}
        return 200, {"access_token": "a", "token_type": "Bearer", "id_token": self._signed(asked)}

    def _signed(self, asked: dict[str, str]) -> str:
        if self.raw_token is not None:
            return self.raw_token
        now = int(time.time())
        person = asked["person"]
        claims = {
            "iss": self.issuer,
            "sub": f"id-of-{person}",
            "aud": CLIENT,
            "exp": now + 300,
            "iat": now,
            "nonce": asked["nonce"],
            "preferred_username": person,
        }
        claims |= PEOPLE[person] | self.told
        claims = {name: value for name, value in claims.items() if value is not None}
        key = self.signed_by or self.key
        return jwt.encode(
            {"alg": self.algorithm, "kid": self.key.kid}, claims, key, [self.algorithm]
        )


@cache
def _own_key() -> RSAKey:
    """Make the key of all providers of this process: to make one takes longer than to log in."""
    return RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})


def forged(issuer: str, algorithm: str = "none") -> str:
    """Return a token that nobody has signed."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = int(time.time())
    claims = {"iss": issuer, "aud": CLIENT, "sub": "x", "exp": now + 60, "iat": now}
    head = {"alg": algorithm, "kid": "one"}
    return f"{part(head)}.{part(claims | {'groups': ['root']})}."


def signed_by_public_key(provider: Provider) -> str:
    """Return a token whose secret is the public key: a classical forgery of a signature."""
    head, body, _ = forged(provider.issuer, algorithm="HS256").split(".")
    secret = provider.key.as_pem(private=False)
    mac = hmac.digest(secret, f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def shared_secret() -> OctKey:
    return OctKey.generate_key(256, {"kid": "one"})


def other_key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": "one"})


def elliptic_key() -> ECKey:
    return ECKey.generate_key("P-256", {"kid": "two", "use": "sig"})


def settings(provider: Provider, **changed: Any) -> OidcSettings:
    values = {
        "issuer": provider.issuer,
        "client_id": CLIENT,
        "client_secret": SECRET,
        "public_url": PUBLIC,
        "roles": ROLES,
    }
    return OidcSettings(**(values | changed))


@contextmanager
def served() -> Iterator[Provider]:
    """Serve a provider at a free port."""
    provider = Provider()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/authorize?"):
                self.send_response(303)
                self.send_header("Location", provider.authorized(self.path, provider.person))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            pages = {
                "/.well-known/openid-configuration": provider.discovery,
                "/keys": provider.public_keys,
            }
            page = pages.get(self.path)
            self._answer(*((200, page()) if page else (404, {})))

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            fields = parse_qs(self.rfile.read(length).decode())
            form = {name: values[0] for name, values in fields.items()}
            self._answer(*provider.token(form, self.headers.get("Authorization", "")))

        def _answer(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    provider.issuer = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
