"""Mails, against a real SMTP server."""

import asyncio
import re
import smtplib
import ssl
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session
from tests.resend.digests import DIGEST, NOON
from tests.waiting import run_scene

from reliable_mq.errors import ConfigurationError
from reliable_mq.escalate.smtp_notifier import SmtpNotifier
from reliable_mq.testing.local_servers import free_port


class Mailbox:
    """Keeps what arrives; refuses `refused`, answers with `answer`, may hang up after the mail."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[str] = []
        self.refused: set[str] = set()
        self.answer = "250 OK"
        self.hangs_up = False

    async def handle_RCPT(  # noqa: N802 - the server's name for it
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refused:
            return "550 no such person"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        if self.answer.startswith("250"):
            mail = message_from_bytes(envelope.original_content or b"", policy=default)
            assert isinstance(mail, EmailMessage)
            self.mails.append(mail)
            self.recipients += envelope.rcpt_tos
        return self.answer

    async def handle_QUIT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        if self.hangs_up:
            raise ConnectionResetError
        return "221 Bye"


@contextmanager
def serving(mailbox: Mailbox, **options: Any) -> Iterator[int]:
    port = free_port()
    options = {"ready_timeout": 60.0} | options
    controller = Controller(mailbox, hostname="127.0.0.1", port=port, **options)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


def notifier(server: str, **more: Any) -> SmtpNotifier:
    options: dict[str, Any] = {
        "sender": "Shop MQ <mq@shop.example>",
        "recipients": "Ops <ops@shop.example>, dev@shop.example",
        "timeout": 5.0,
    }
    return SmtpNotifier(server, **(options | more))


def test_a_digest_is_a_mail_with_text_and_html() -> None:
    mailbox = Mailbox()
    with serving(mailbox) as port:
        notifier(f"smtp://127.0.0.1:{port}").tell(DIGEST)

    (mail,) = mailbox.mails
    headline = "[shop] 3 messages wait for a person: 1 sends used up, 2 dead letter"
    assert mail["Subject"] == headline
    assert mail["From"] == "Shop MQ <mq@shop.example>"
    assert mail["To"] == "Ops <ops@shop.example>, dev@shop.example"
    assert mailbox.recipients == ["ops@shop.example", "dev@shop.example"]
    assert mail["Message-ID"] == f"<{DIGEST.digest_id}@shop.example>"
    assert mail["Date"].datetime == NOON
    assert mail["Auto-Submitted"] == "auto-generated"
    text, html = (part.get_content() for part in mail.iter_parts())
    for part in (text, html):
        assert headline in part
        assert "A" * 32 in part
        assert "größer" in part
    assert "     2  dead letter, topic orders, group payments, since 2026-11-21 12:00:00" in text
    assert "dead letter of payments: attempt 3 of 3 failed: ValueError: <b>1 & 2</b>" in text
    assert "... and 1 more." in text
    assert "&lt;b&gt;1 &amp; 2&lt;/b&gt;" in html  # what a handler says is no markup


def test_the_same_digest_is_the_same_mail() -> None:
    mailbox = Mailbox()
    with serving(mailbox) as port:
        for _ in range(2):
            notifier(f"smtp://127.0.0.1:{port}").tell(DIGEST)

    first, again = mailbox.mails
    assert first["Message-ID"] == again["Message-ID"]
    assert first["Date"] == again["Date"]


def test_an_application_brings_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "escalation.subject.txt").write_text("{{ digest.total }}\nto look at")
    mailbox = Mailbox()
    with serving(mailbox) as port:
        notifier(f"smtp://127.0.0.1:{port}", templates=tmp_path).tell(DIGEST)

    (mail,) = mailbox.mails
    assert mail["Subject"] == "3 to look at"
    assert "payments" in mail.get_body(("plain",)).get_content()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "words",
    ["{{ digest.nothing }}", "{% if %}", "{{ digest.__class__.__mro__ }}", "{{ 1 / 0 }}"],
)
def test_a_template_that_cannot_be_filled_is_refused_at_the_start(
    tmp_path: Path, words: str
) -> None:
    (tmp_path / "escalation.txt").write_text(words)

    with pytest.raises(ConfigurationError, match="templates of mails cannot be filled"):
        notifier("smtp://127.0.0.1", templates=tmp_path)


@pytest.mark.parametrize("password", [f"s3{mark}crt" for mark in "?/#[]℀"] + ["53123?crt"])
def test_a_password_that_is_not_encoded_is_shown_by_no_refusal_and_taken_for_no_port(
    password: str,
) -> None:
    with pytest.raises(ConfigurationError, match="is invalid: write it like") as refused:
        SmtpNotifier(f"smtp://ops:{password}@host", sender="mq@a.b", recipients="ops@a.b")
    text = "".join(traceback.format_exception(refused.value))
    assert not re.search("s3|53123|crt|℀", text), text


def test_a_mail_that_nobody_got_was_not_told() -> None:
    mailbox = Mailbox()
    with serving(mailbox) as port:
        mailbox.refused = {"ops@shop.example", "dev@shop.example"}
        with pytest.raises(smtplib.SMTPRecipientsRefused):
            notifier(f"smtp://127.0.0.1:{port}").tell(DIGEST)
        mailbox.refused.clear()
        mailbox.answer = "451 full"
        with pytest.raises(smtplib.SMTPDataError, match="full"):
            notifier(f"smtp://127.0.0.1:{port}").tell(DIGEST)
    with pytest.raises(ConnectionRefusedError):
        notifier(f"smtp://127.0.0.1:{port}").tell(DIGEST)


def test_a_mail_that_somebody_got_was_told(caplog: pytest.LogCaptureFixture) -> None:
    mailbox = Mailbox()
    mailbox.refused = {"ops@shop.example"}
    with serving(mailbox) as port:
        notifier(f"smtp://127.0.0.1:{port}").tell(DIGEST)

    assert mailbox.recipients == ["dev@shop.example"]
    assert "ops@shop.example was refused: 550 no such person" in caplog.text


def test_a_server_that_is_gone_after_it_took_the_mail_has_taken_it() -> None:
    mailbox = Mailbox()
    mailbox.hangs_up = True
    with serving(mailbox) as port:
        notifier(f"smtp://127.0.0.1:{port}").tell(DIGEST)

    assert len(mailbox.mails) == 1


def test_a_server_that_says_nothing_is_given_up() -> None:
    begun = asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await _reader.read()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        mail = notifier(f"smtp://127.0.0.1:{port}", timeout=0.05)
        with pytest.raises(OSError, match="timed out"):  # also while it connects
            await asyncio.to_thread(mail.tell, DIGEST)
        await begun.wait()
        server.close()

    run_scene(scenario())


@pytest.mark.filterwarnings("ignore:Requiring AUTH")  # smtps is TLS that the server knows not of
@pytest.mark.parametrize("scheme", ["smtps", "smtp+starttls"])
def test_password_and_mail_travel_encrypted(scheme: str) -> None:
    authority = trustme.CA()
    of_server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(of_server)
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    seen: list[Any] = []

    def check(_server: SMTP, session: Session, _envelope: Envelope, _how: str, data: Any) -> Any:
        seen.append((data.login, data.password, session.ssl is not None))
        return AuthResult(success=data.password == b"p@ss:word")

    mailbox = Mailbox()
    options: dict[str, Any] = {"authenticator": check, "auth_required": True}
    if scheme == "smtps":
        options |= {"ssl_context": of_server, "auth_require_tls": False}
    else:
        options |= {"tls_context": of_server, "require_starttls": True}
    with serving(mailbox, **options) as port:
        url = f"{scheme}://ann:p%40ss%3Aword@127.0.0.1:{port}"
        notifier(url, tls=lambda: trusted).tell(DIGEST)
        with pytest.raises(ssl.SSLCertVerificationError):
            notifier(url).tell(DIGEST)  # nobody vouches for this server

    assert len(mailbox.mails) == 1
    assert [each[:2] for each in seen] == [(b"ann", b"p@ss:word")]


@pytest.mark.parametrize("host", ["[::1]x:25", "x[::1]:25", "[::1]25", "[::1", "a b", "h:", "h:0"])
def test_a_mail_server_that_is_no_host_and_port_is_refused_and_not_shown(host: str) -> None:
    with pytest.raises(ConfigurationError, match="is invalid: write it like") as refused:
        notifier(f"smtp://shop:s3cret@{host}")
    assert "s3cret" not in str(refused.value)
