"""`access` at a running broker with access control: what one types, and what comes."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.access.access_world import ON, ROOT, SECRET
from tests.access.test_plain_acl import FILE
from tests.cli.test_admin_commands import Call
from tests.client.cluster import PATIENT

from reliable_mq.cli.main import BAD_USAGE, DONE, FAILED, run
from reliable_mq.client.connecting.security import Credentials
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import NotPermitted
from reliable_mq.message import Message

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReliableMQBroker]:
    """Give a running broker with access control, called "one"."""
    directory = tmp_path_factory.mktemp("broker")
    with ReliableMQBroker(directory, settings={**ON, "brokerName": "one"}) as running:
        yield running


@pytest.fixture
def call(
    broker: ReliableMQBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Call:
    """Give a call of the command line as root: exit code, output, errors."""
    monkeypatch.setenv("RELIABLE_MQ_BROKER", broker.name_server_address)
    monkeypatch.setenv("RELIABLE_MQ_ACCESS_KEY", ROOT)
    monkeypatch.setenv("RELIABLE_MQ_SECRET_KEY", SECRET)

    def called(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run(words)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return called


def client(broker: ReliableMQBroker, user: str, secret: str) -> Client:
    who = Credentials(access_key=user, secret_key=secret)
    settings = msgspec.structs.replace(PATIENT, credentials=who)
    return Client(broker.name_server_address, settings=settings)


def test_accounts_of_4x_are_imported_once_and_may_do_what_they_might(
    call: Call, broker: ReliableMQBroker, tmp_path: Path
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(FILE)

    code, out, err = call("access", "import", str(file), "--dry-run")
    assert code == DONE
    assert "user RocketMQ: would be made at one" in out
    assert err.count("warning: ") == 2
    assert json.loads(call("access", "list", "--json")[1])[0]["user"] == ROOT

    code, out, _ = call("access", "import", str(file))
    assert (code, out) == (DONE, "user RocketMQ: made at one\nuser rocketmq2: made at one\n")
    code, out, _ = call("access", "import", str(file))
    assert (code, out) == (DONE, "user RocketMQ: exists already\nuser rocketmq2: exists already\n")

    code, out, _ = call("access", "list")
    assert "Allow Pub,Sub Topic:topicB" in out
    assert SECRET not in out
    assert "12345678" not in out
    for topic in ("topicA", "topicB"):
        call("topic", "create", topic)
    with client(broker, "RocketMQ", "12345678") as shop:
        shop.send(Message(topic="topicB", body=b"x"))
        with pytest.raises(NotPermitted, match="the decision is deny"):
            shop.send(Message(topic="topicA", body=b"x"))
    with client(broker, "rocketmq2", "abcdefgh") as boss:
        assert "one" in boss.admin.accounts.all().value


def test_a_user_lives_from_add_to_remove(
    call: Call, broker: ReliableMQBroker, tmp_path: Path
) -> None:
    def done(*words: str) -> str:
        code, out, err = call("access", *words)
        assert (code, err) == (DONE, ""), err
        return out

    file = tmp_path / "secret"
    file.write_text("a secret of ann\n")
    of_bea = tmp_path / "of_bea"
    of_bea.write_text("a secret of bea\n")
    add = ("add", "ann", "--secret", f"@{file}")
    assert done(*add, "--dry-run") == "user ann would be made at one\n"
    assert done(*add) == "user ann made at one\n"
    code, out, err = call("access", *add)
    assert (code, out) == (FAILED, "")
    told = "error: user ann exists already and keeps its secret; use reliable-mq access change ann"
    assert err == f"{told} --secret @FILE\n"
    assert done("add", "bea", "--super", "--secret", f"@{of_bea}") == "user bea made at one\n"
    with client(broker, "bea", "a secret of bea") as bea:
        bea.create_topic("granted", 1)

    grant = ("grant", "ann", "--allow", "Topic:granted=Pub,Sub", "--deny", "Topic:grant*=All")
    assert done(*grant, "--from", "127.0.0.0/8") == "policies of ann made at one\n"
    listed = done("list")
    assert "Allow Pub,Sub Topic:granted from 127.0.0.0/8; Deny All Topic:grant* from" in listed
    with client(broker, "ann", "a secret of ann") as ann:
        ann.send(Message(topic="granted", body=b"x"))
        assert done("change", "ann", "--disable") == "user ann changed at one\n"
        with pytest.raises(NotPermitted, match=r"User:ann is disabled\."):
            ann.send(Message(topic="granted", body=b"x"))
        assert "disabled" in done("list")
        done("change", "ann", "--enable", "--secret", f"@{of_bea}")
        with pytest.raises(NotPermitted, match=r"check signature failed; set access_key"):
            ann.send(Message(topic="granted", body=b"x"))
        done("change", "ann", "--secret", f"@{file}")
        revoke = ("revoke", "ann", "topic:granted")
        assert done(*revoke, "--dry-run") == "policy of ann would be removed at one\n"
        assert done(*revoke) == "policy of ann removed at one\n"
        with pytest.raises(NotPermitted, match="the decision is deny"):
            ann.send(Message(topic="granted", body=b"x"))
        assert done("change", "ann", "--super") == "user ann changed at one\n"
        ann.send(Message(topic="granted", body=b"x"))
        assert done("remove", "ann", "--dry-run") == "user ann would be removed at one\n"
        assert done("remove", "ann", "--yes") == "user ann removed at one\n"
        with pytest.raises(NotPermitted, match=r"User:ann is not found: correct access_key"):
            ann.send(Message(topic="granted", body=b"x"))
    assert done("remove", "bea", "--yes") == "user bea removed at one\n"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("add", "ann"), "no secret is given: write --secret @FILE, or --secret - to be asked"),
        (("add", "ann", "--secret", "@none"), "--secret: none: No such file or directory"),
        (("add", "ann", "--secret", "pw"), "a list of processes shows the command; write @FILE"),
        (("change", "ann"), "nothing to change: give --secret, --disable"),
        (("change", "nobody", "--disable"), "no broker has the user nobody"),
        (("revoke", ROOT, "Topic:a"), "no broker has a policy of root on Topic:a"),
        (("revoke", ROOT, "orders"), "orders: write a resource, such as Topic:orders"),
        (("grant", "ann"), "nothing to grant: give --allow RESOURCE=ACTIONS or --deny"),
        (("grant", "ann", "--allow", "Topic:a"), "Topic:a: write RESOURCE=ACTIONS"),
        (("grant", "ann", "--allow", "Topic:a=Fly"), "there is no action 'Fly'; there are All,"),
        (
            ("grant", "ann", "--allow", "a=Pub"),
            "a=Pub: 'a' is no resource: write Topic:NAME",
        ),
        (
            ("grant", "ann", "--allow", "Topic:x=Pub", "--deny", "Topic:x=Pub"),
            "Topic:x is named twice: a resource has one policy",
        ),
        (
            ("grant", "ann", "--allow", "Topic:a=Pub", "--from", "nowhere"),
            "--from nowhere: The source ip is invalid.",
        ),
        (("grant", "nobody", "--allow", "Topic:a=Pub"), "no broker has the user nobody"),
        (("remove", "nobody", "--yes"), "no broker has the user nobody"),
    ],
)
def test_a_wrong_use_is_one_line(call: Call, words: tuple[str, ...], fault: str) -> None:
    code, out, err = call("access", *words)
    assert code != DONE
    assert out == ""
    assert fault in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("accounts: [", "plain_acl.yml, line 1: it is no YAML"),
        ("accounts:\n  - {secretKey: hidden", "it is no YAML"),
        ("- hidden", "plain_acl.yml: it has no list `accounts`"),
        (FILE.replace("topicC=SUB", "topicC=READ"), "topicPerms: topicC: 'READ': write PUB"),
        ("!!python/object/apply:os.system ['hidden']", "it is no YAML"),
        ("x" * (1 << 20) + "x", "larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_read_changes_nothing(
    call: Call, tmp_path: Path, text: str, fault: str
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(text)
    before = call("access", "list")[1]

    code, out, err = call("access", "import", str(file))
    assert (code, out) == (BAD_USAGE, "")
    assert fault in err
    assert err.count("\n") == 1
    assert "hidden" not in err
    assert call("access", "list")[1] == before


def test_a_missing_file_is_one_line(call: Call, tmp_path: Path) -> None:
    code, _, err = call("access", "import", str(tmp_path / "none.yml"))
    assert code != DONE
    assert "No such file or directory" in err
    assert err.count("\n") == 1


def test_who_is_not_known_is_told_so(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_MQ_SECRET_KEY", "a wrong secret")
    code, out, err = call("access", "list")
    assert (code, out) == (FAILED, "")
    assert err == (
        "error: the account is refused (check signature failed): set RELIABLE_MQ_ACCESS_KEY and"
        " RELIABLE_MQ_SECRET_KEY to those of a user of the broker\n"
    )


def test_the_file_with_the_secrets_is_for_its_owner_only(broker: ReliableMQBroker) -> None:
    file = broker.store / "config" / "access.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SECRET in file.read_text()


def test_the_log_of_a_broker_has_no_secret(broker: ReliableMQBroker) -> None:
    log = broker.directory / "broker-1.log"
    assert SECRET not in log.read_text()
