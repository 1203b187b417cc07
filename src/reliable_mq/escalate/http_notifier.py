"""The webhook notifier: sends one signed POST for each digest.

The signature follows Standard Webhooks (standardwebhooks.com); receivers find a library for it in
most languages. The headers are `webhook-id` (the digest id, the same when a digest is sent again),
`webhook-timestamp` and `webhook-signature` (HMAC-SHA256 over id, timestamp and body).
"""

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from http.client import HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from reliable_mq.errors import ConfigurationError, Unavailable
from reliable_mq.escalate.escalation import Digest
from reliable_mq.host_and_port import place_of_authority

SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret begins with
_SECRET_SIZES = range(24, 65)
_ANSWER_SIZE_MAX = 500


class WebhookNotifier:
    """Posts a JSON object for each digest. A status of 200 to 299 means "accepted".

    Redirects are not followed: a signed POST must not reach another server than the one named.

    Args:
        url: `https://…`, or `http://…` inside your own network.
        secret: "whsec_" and 24 to 64 bytes in base64. The receiver has the same secret.
        cooldown: seconds from one post to the next. Default 900.
        timeout: seconds to wait for the server's answer. Default 10.
        name: the notifier's name. Default "webhook".
        clock: seconds since the epoch. Receivers refuse timestamps that are minutes off.

    Raises:
        ConfigurationError: when the URL or the secret is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str,
        cooldown: float = 900.0,
        timeout: float = 10.0,
        name: str = "webhook",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.cooldown = cooldown
        self._timeout = timeout
        self._clock = clock
        if not _is_url(url):
            # The text does not show the URL: its path may be a secret, and what looks like a port
            # may be a part of a password.
            raise ConfigurationError(
                "escalation_webhook is not a valid URL: write it like https://host/path, without a"
                " login; percent-encode blanks (%20) and all characters outside ASCII"
            )
        self._url = url
        self._key = _key_of(secret)
        self._opener = _opener()

    def tell(self, digest: Digest) -> None:
        """Post the digest.

        Raises:
            Unavailable: when the status is not 200 to 299. The text has the status.
            OSError: when the server does not answer.
        """
        body = json.dumps(payload_of(digest), separators=(",", ":")).encode()
        headers = signed(self._key, digest.digest_id, int(self._clock()), body)
        headers |= {"content-type": "application/json", "user-agent": "reliable-mq"}
        request = Request(self._url, data=body, headers=headers, method="POST")  # noqa: S310 - checked
        try:
            answer: HTTPResponse = self._opener.open(request, timeout=self._timeout)
            with answer:
                answer.read(_ANSWER_SIZE_MAX)
        except HTTPError as error:
            with error:
                said = " ".join(error.read(_ANSWER_SIZE_MAX).decode("utf-8", "replace").split())
            raise Unavailable(
                f"the webhook answered {error.code} {error.reason}: {said}"
            ) from error


def _is_url(text: str) -> bool:
    """Say whether a URL can be posted to.

    The first checks come before `urlsplit`, which silently repairs texts that a POST would not.
    """
    if not text.isascii() or not text.isprintable() or set(text) & {" ", "\\"}:
        return False
    try:
        parts = urlsplit(text)
        is_place = "@" not in parts.netloc and place_of_authority(parts.netloc) is not None
    except ValueError:
        return False
    return is_place and parts.scheme in ("http", "https")


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _opener() -> OpenerDirector:
    return build_opener(_NoRedirect, HTTPSHandler())


def payload_of(digest: Digest) -> dict[str, Any]:
    """Return a digest as a JSON object. Times are ISO 8601, UTC."""
    return {
        "type": "escalation.digest",
        "timestamp": digest.time.isoformat(),
        "data": {
            "application": digest.application,
            "digest_id": digest.digest_id,
            "headline": digest.headline,
            "total": digest.total,
            "shares": [
                {
                    "kind": str(share.kind),
                    "topic": share.topic,
                    "consumer_group": share.consumer_group,
                    "count": share.count,
                    "oldest": share.oldest.isoformat(),
                }
                for share in digest.shares
            ],
            "escalations": [
                {
                    "kind": str(item.kind),
                    "message_id": item.message_id,
                    "topic": item.topic,
                    "consumer_group": item.consumer_group,
                    "message_key": item.message_key,
                    "reason": item.reason,
                    "time": item.create_date.isoformat() if item.create_date else None,
                }
                for item in digest.items
            ],
        },
    }


def signed(key: bytes, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers of Standard Webhooks for a body."""
    signed_content = f"{message_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.digest(key, signed_content, hashlib.sha256)).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }


def _key_of(secret: str) -> bytes:
    hint = (
        'escalation_webhook_secret: "whsec_" and 24 to 64 bytes in base64; make one by '
        "echo whsec_$(openssl rand -base64 32)"
    )
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigurationError(hint) from error
    if not secret.startswith(SECRET_PREFIX) or len(key) not in _SECRET_SIZES:
        raise ConfigurationError(hint)
    return key
