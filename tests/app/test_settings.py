"""Settings that are misspelt are told of, wherever they stand."""

import logging
import re
import traceback
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.worlds import call

from reliable_mq import ReliableMQ
from reliable_mq.errors import ConfigurationError
from reliable_mq.escalate.escalation import Digest

MAIL: dict[str, Any] = {
    "escalation_mail_server": "smtps://ann:hunter2@mail.shop.example",
    "escalation_mail_from": "mq@shop.example",
    "escalation_mail_to": "Ops <ops@shop.example>, dev@shop.example",
}
HOOK: dict[str, Any] = {"escalation_webhook": "https://shop.example/hook"}


def test_a_setting_that_does_not_exist_names_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigurationError, match=r"no setting databse; did you mean database\?"):
        ReliableMQ("shop", databse="sqlite:///x.db")  # type: ignore[call-arg]
    with pytest.raises(
        ConfigurationError, match=r"no setting zzz; there are namespace, access_key,"
    ):
        ReliableMQ("shop", zzz=1)  # type: ignore[call-arg]


def test_a_misspelt_variable_is_told_of_and_other_peoples_variables_are_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_CLAIM_LAESE", "3")
    monkeypatch.setenv("RELIABLE_MQ_SERVICE_HOST", "10.0.0.1")  # Kubernetes

    assert ReliableMQ("shop").settings.claim_lease_seconds == 10.0

    (line,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    said = "RELIABLE_MQ_CLAIM_LAESE sets nothing; did you mean RELIABLE_MQ_CLAIM_LEASE_SECONDS?"
    assert line.getMessage() == said


@pytest.mark.parametrize("broker", ["nonsense", "", "there:", "127.0.0.1:70000"])
def test_an_address_that_cannot_be_a_broker_is_refused_before_it_is_needed(broker: str) -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        ReliableMQ("shop", broker=broker)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"redis": "there:6379"},
            "redis='there:6379' is not a Redis URL: it must begin with redis://",
        ),
        ({"broker": "embedded:"}, "broker='embedded:DIR' needs a directory for the store"),
        (
            {"leases": 5},
            "leases=5 is not a function without arguments that opens a LeaseStore: 5 is",
        ),
        ({"leases": lambda url: url}, "a missing argument: 'url'|argument: 'url'"),
    ],
)
def test_what_an_application_could_not_start_with_is_refused_when_it_is_made(
    given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        ReliableMQ("shop", **given)


def test_leases_may_be_opened_by_what_does_not_say_how_it_is_called() -> None:
    of_c: Any = dict
    with pytest.raises(ValueError, match="no signature"):
        signature(of_c)

    ReliableMQ("shop", leases=of_c)


def test_leases_that_opened_something_else_are_told_at_the_start(tmp_path: Path) -> None:
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path}/store",
        database=f"sqlite:///{tmp_path}/x.db",
        leases=lambda: 5,  # type: ignore[arg-type, return-value]
    )

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None: ...

    mq.create_tables()
    with pytest.raises(ConfigurationError, match="leases= opened 5, which is not a LeaseStore"):
        mq.start()
    mq.close()


def test_a_variable_and_a_commands_option_are_refused_like_an_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    says = "redis='redis://@there/x' is not a Redis URL: /x is not the number of a database"
    url = "redis://:secret@there/x"
    assert call("doctor", "--db", f"sqlite:///{tmp_path}/x.db", "--redis", url) == 2
    assert capsys.readouterr().err.splitlines() == [f"error: {says}"]

    monkeypatch.setenv("RELIABLE_MQ_REDIS", url)

    with pytest.raises(ConfigurationError, match=says):
        ReliableMQ("shop")


def test_an_applications_notifiers_tell_beside_the_log(tmp_path: Path) -> None:
    class Pager:
        name, cooldown = "pager", 0.0

        def tell(self, digest: Digest) -> None: ...

    mq = ReliableMQ("shop", database=f"sqlite:///{tmp_path}/x.db", notifiers=[Pager()])
    assert sorted(mq.alerts()._notifiers) == ["log", "pager"]
    mq.close()

    with pytest.raises(ConfigurationError, match="two notifiers share a name: pager, pager"):
        ReliableMQ("shop", database=f"sqlite:///{tmp_path}/x.db", notifiers=[Pager(), Pager()])


@pytest.mark.parametrize(
    "given",
    [
        {"relay_lease_seconds": float("inf")},
        {"resend_notify_after_seconds": 1e300},
        {"escalation_cooldown_seconds": float("inf")},
        {"retry_waits_seconds": (1.0, float("nan"))},
        {"resend_waits_seconds": (1.0, float("inf"))},
    ],
)
def test_a_time_that_leaves_the_calendar_is_refused_before_it_is_added_to_one(
    given: dict[str, Any],
) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))}=.*a hundred years"):
        ReliableMQ("shop", **given)


def test_applications_that_tell_different_people_have_different_notifiers(tmp_path: Path) -> None:
    """Over one database each would else tell half of what there is."""

    def names(**given: Any) -> set[str]:
        mq = ReliableMQ("shop", database=f"sqlite:///{tmp_path}/x.db", **given)
        found = set(mq.alerts()._notifiers) - {"log"}
        mq.close()
        return found

    hook = {"escalation_webhook": "https://shop.example/hook/secret"}
    key = {"escalation_webhook_secret": "whsec_" + "A" * 32}
    assert names(**MAIL) == {"mail to dev@shop.example, ops@shop.example"}
    turned = {**MAIL, "escalation_mail_to": "dev@shop.example,OPS@shop.example"}
    assert names(**turned) == names(**MAIL)
    others = {**MAIL, "escalation_mail_to": ",".join(f"p{n}@shop.example" for n in range(9))}
    (many,) = names(**others)
    assert re.fullmatch(r"mail to 9 addresses, [0-9a-f]{8}", many)
    (posts,) = names(**hook, **key)
    assert re.fullmatch(r"webhook to shop\.example, [0-9a-f]{8}", posts)
    elsewhere = {"escalation_webhook": "https://shop.example/hook/other"}
    assert names(**elsewhere, **key) != {posts}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"escalation_mail_to": "ops@shop.example"}, "needs an escalation_mail_server"),
        ({"escalation_mail_server": "ftp://host"}, "smtp://… or smtp+starttls://… or smtps://…"),
        ({"escalation_mail_server": "smtp://host:http"}, "is invalid"),
        ({**MAIL, "escalation_mail_to": ""}, "write it like ops@shop.example"),
        ({**MAIL, "escalation_mail_to": "ops"}, "write it like ops@shop.example"),
        ({**MAIL, "escalation_mail_from": "a@b\nBcc: c@d"}, "escalation_mail_from"),
        ({**MAIL, "escalation_templates": "nowhere"}, "there is no folder nowhere"),
        ({"escalation_webhook": "shop.example/hook"}, "write it like https://host/path"),
        ({"escalation_webhook": "file:///etc/passwd"}, "write it like https://host/path"),
        ({"escalation_webhook": "https://shop.example"}, "openssl rand -base64 32"),
        ({**HOOK, "escalation_webhook_secret": "whsec_c2hvcnQ="}, "openssl rand -base64 32"),
        ({**HOOK, "escalation_webhook_secret": "whsec_§"}, "openssl rand -base64 32"),
        ({"escalation_cooldown_seconds": -1}, "escalation_cooldown_seconds"),
        ({"escalation_timeout_seconds": 0}, "escalation_timeout_seconds"),
        ({"resend_notify_after_seconds": 0}, "resend_notify_after_seconds"),
    ],
)
def test_a_notifier_that_cannot_work_is_refused_at_once(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        ReliableMQ("shop", **given)


@pytest.mark.parametrize(
    ("variable", "value", "like"),
    [
        ("RELIABLE_MQ_RESEND_WAITS_SECONDS", "1,5", "[1, 5]"),
        ("RELIABLE_MQ_DATABASES", "{billing", '{"name": "URL"}'),
        ("RELIABLE_MQ_CLIENT", "retries=3", '{"retries": 3}'),
    ],
)
def test_a_variable_that_is_no_json_is_reported_with_what_to_write(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, like: str
) -> None:
    monkeypatch.setenv(variable, value)
    says = f"{variable} is not JSON: write it like {like}"
    with pytest.raises(ConfigurationError, match=f"^{re.escape(says)}$"):
        ReliableMQ("shop")


@pytest.mark.parametrize(
    "url",
    [
        *("hooks.shop.example/s3cret", "https:///s3cret", "https://ops:s3cret?x@host", "https://["),
        *("https://ops:s3cret@host/x", "https://host/s3cret x", "https://host/s3cret/ü"),
        *("ht\ntps://host/s3cret", "\x01https://host/s3cret", "https://host\\@x:9/s3cret"),
    ],
)
def test_a_webhook_that_is_refused_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="write it like https://host/path") as refused:
        ReliableMQ("shop", **{**HOOK, "escalation_webhook": url})
    assert "s3cret" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "given",
    [
        {"databases": {"Bad": "postgresql+psycopg://u:s3cret@h/n"}},
        *({name: ["redis://u:s3cret@h"]} for name in ("database", "databases", "redis")),
        {"signing_keys": "a:s3cret"},
    ],
)
def test_a_refused_setting_shows_no_value_in_its_traceback(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ReliableMQ("shop", **given)
    assert "s3cret" not in "".join(traceback.format_exception(refused.value))


def test_settings_show_no_url_that_may_hold_a_password() -> None:
    url = "redis://shop:s3cret@127.0.0.1"
    mq = ReliableMQ("shop", redis=url, database="postgresql+psycopg://u:s3cret@127.0.0.1:9/n")
    assert "s3cret" not in repr(mq.settings)
    assert mq.settings.redis == url


def test_a_secret_is_not_printed() -> None:
    secret = "whsec_" + "c2VjcmV0" * 4
    mq = ReliableMQ("shop", **{**HOOK, "escalation_webhook_secret": secret})
    assert "c2VjcmV0" not in repr(mq.settings)
    assert "hunter2" not in repr(ReliableMQ("shop", **MAIL).settings)
