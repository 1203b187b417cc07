"""Signed posts, against a real HTTP server and a library of the standard's own."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from tests.resend.digests import DIGEST

from reliable_mq.errors import Unavailable
from reliable_mq.escalate.http_notifier import WebhookNotifier

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"


class Hook:
    """Keeps what is posted; answers with `status`, and a place to go to."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, dict[str, str], bytes]] = []
        self.status = 200
        self.silent = threading.Event()
        self.silent.set()


@contextmanager
def serving(hook: Hook) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.silent.wait(60)
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            hook.posts.append((self.path, headers, body))
            self.send_response(hook.status)
            self.send_header("location", "/elsewhere")
            self.end_headers()
            self.wfile.write(b"said\nso")

        def do_GET(self) -> None:
            raise AssertionError("a signed post goes nowhere else")

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook?x=1"
        server.shutdown()
        thread.join()


def test_a_receiver_can_tell_that_a_digest_is_ours() -> None:
    hook = Hook()
    with serving(hook) as url:
        WebhookNotifier(url, secret=SECRET).tell(DIGEST)

    ((path, headers, body),) = hook.posts
    assert path == "/hook?x=1"
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == DIGEST.digest_id
    told = Webhook(SECRET).verify(body, headers)
    assert told == json.loads(body)
    assert told["type"] == "escalation.digest"
    data = told["data"]
    assert (data["application"], data["total"]) == ("shop", 3)
    assert data["escalations"][0] == {
        "kind": "dead letter",
        "message_id": "A" * 32,
        "topic": "orders",
        "consumer_group": "payments",
        "message_key": "order 17",
        "reason": "attempt 3 of 3 failed: ValueError: <b>1 & 2</b> größer",
        "time": "2026-11-21T12:00:00+00:00",
    }
    for secret, sent in ((OTHER, body), (SECRET, body + b" ")):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(sent, headers)


def test_an_old_post_is_no_proof() -> None:
    hook = Hook()
    with serving(hook) as url:
        WebhookNotifier(url, secret=SECRET, clock=lambda: time.time() - 3600).tell(DIGEST)

    ((_, headers, body),) = hook.posts
    with pytest.raises(WebhookVerificationError, match="too old"):
        Webhook(SECRET).verify(body, headers)


@pytest.mark.parametrize("status", [201, 204])
def test_every_answer_of_the_two_hundreds_is_yes(status: int) -> None:
    hook = Hook()
    hook.status = status
    with serving(hook) as url:
        WebhookNotifier(url, secret=SECRET).tell(DIGEST)
    assert len(hook.posts) == 1


@pytest.mark.parametrize("status", [302, 307, 400, 410, 500, 503])
def test_any_other_answer_is_no_and_says_which(status: int) -> None:
    hook = Hook()
    hook.status = status
    with (
        serving(hook) as url,
        pytest.raises(Unavailable, match=f"the webhook answered {status} .*: said so"),
    ):
        WebhookNotifier(url, secret=SECRET).tell(DIGEST)

    assert len(hook.posts) == 1  # a signed post goes nowhere else


def test_a_server_that_says_nothing_or_is_not_there_is_given_up() -> None:
    hook = Hook()
    hook.silent.clear()
    with serving(hook) as url:
        with pytest.raises(OSError, match="timed out"):
            WebhookNotifier(url, secret=SECRET, timeout=0.05).tell(DIGEST)
        hook.silent.set()
    with pytest.raises(OSError, match="refused"):
        WebhookNotifier(url, secret=SECRET).tell(DIGEST)
