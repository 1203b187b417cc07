"""No credential is printed, logged, written or shown by a list of processes.

Each setting that can have a secret gets one of its own. Then all commands run: without servers,
with servers, with a server that refuses the login. All that they print is searched for the secrets.
"""

import contextlib
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import SQLAlchemyError
from tests.cli.test_conventions import COMMANDS
from tests.waiting import until

from reliable_mq import ClientSettings, Credentials, ReliableMQ
from reliable_mq.cli.main import run
from reliable_mq.database.sql_urls import shown_url
from reliable_mq.errors import ReliableMQError
from reliable_mq.settings import Settings, load_settings
from reliable_mq.testing.local_servers import LocalPostgres, LocalValkey

PLANTED = {
    name: f"planted{number}{word}"
    for number, (name, word) in enumerate(
        {
            "database": "quokka",
            "database_option": "axolotl",
            "other_database": "narwhal",
            "redis": "wombat",
            "redis_option": "ocelot",
            "secret_key": "pangolin",
            "security_token": "tapir",
            "mail": "okapi",
            "webhook_path": "numbat",
            "webhook_key": "kakapo",
            "signing": "dugong",
            "client": "fossa",
        }.items()
    )
}
NOWHERE = "127.0.0.1:1"
WEBHOOK_KEY = "whsec_cGxhbnRlZC1rYWthcG8tMTIzNDU2Nzg5MC1hYmNk"
ENDLESS = {"broker", "namesrv", "run", "dev", "demo", "walk", "init", "console"}
"""Commands that do not end by themselves, or that start an application of their own."""
ARGUMENTS = {"TOPIC": "orders", "GROUP": "payments", "QUEUE": "0", "OFFSET": "0", "SHELL": "bash"}


def environment(database: str, redis: str) -> dict[str, str]:
    """Return variables with a secret wherever one can be."""
    return {
        "RELIABLE_MQ_BROKER": NOWHERE,
        "RELIABLE_MQ_DATABASE": database,
        "RELIABLE_MQ_DATABASES": json.dumps(
            {"other": f"postgresql+psycopg://u:{PLANTED['other_database']}@{NOWHERE}/other"}
        ),
        "RELIABLE_MQ_REDIS": redis,
        "RELIABLE_MQ_ACCESS_KEY": "shop",
        "RELIABLE_MQ_SECRET_KEY": PLANTED["secret_key"],
        "RELIABLE_MQ_SECURITY_TOKEN": PLANTED["security_token"],
        "RELIABLE_MQ_ESCALATION_MAIL_SERVER": f"smtps://me:{PLANTED['mail']}@{NOWHERE}",
        "RELIABLE_MQ_ESCALATION_MAIL_FROM": "mq@shop.example",
        "RELIABLE_MQ_ESCALATION_MAIL_TO": "ops@shop.example",
        "RELIABLE_MQ_ESCALATION_WEBHOOK": f"https://{NOWHERE}/{PLANTED['webhook_path']}?t=1",
        "RELIABLE_MQ_ESCALATION_WEBHOOK_SECRET": WEBHOOK_KEY,
        "RELIABLE_MQ_SIGNING_KEYS": f"k1:{PLANTED['signing']}-and-more",
        "RELIABLE_MQ_CLIENT": json.dumps({"retries": 0, "request_timeout_seconds": 2.0}),
    }


def postgres(place: str, name: str = "shop") -> str:
    login = f"postgres:{PLANTED['database']}"
    return f"postgresql+psycopg://{login}@{place}/{name}?sslpassword={PLANTED['database_option']}"


AWAY = environment(
    postgres(NOWHERE),
    f"rediss://me:{PLANTED['redis']}@{NOWHERE}/0?ssl_password={PLANTED['redis_option']}",
)
APPLICATION = """
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop")

@mq.consumer("orders", group="payments")
def pay(order: dict) -> None: ...
"""


def leaks(text: str) -> list[str]:
    """Return the secrets that a text has."""
    return [each for each in (*PLANTED.values(), WEBHOOK_KEY) if each in text]


def words_of(name: str) -> list[str]:
    """Return a command with a value for each argument that it needs."""
    words = name.split()
    for param in COMMANDS[name].params:
        if param.param_type_name == "argument" and param.required:
            words.append(ARGUMENTS.get(str(param.name).upper(), "0" * 32))
    return words


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give an application in the current folder that takes all settings from the environment."""
    name = f"secret_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(APPLICATION)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield f"{name}:mq"
    sys.path[:] = path
    sys.modules.pop(name, None)


def set_only(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("RELIABLE_MQ_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Callable[..., str]:
    """Give a call of the command line: all that it prints, and all log lines of all levels."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "reliable_mq")

    def called(*words: str) -> str:
        caplog.clear()
        with pytest.raises(SystemExit) as ended:
            run(words)
        out, err = capfd.readouterr()
        return f"{ended.value.code}\n{out}\n{err}\n{caplog.text}"

    return called


@pytest.mark.parametrize("words", sorted(COMMANDS.keys() - ENDLESS))
def test_no_command_prints_a_secret_when_servers_are_away(
    words: str, shop: str, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_only(monkeypatch, AWAY)
    places: list[list[str]] = [[]]
    options = {name for param in COMMANDS[words].params for name in param.opts}
    if "--app" in options:
        places.append(["--app", shop])
    if "--db" in options:
        places.append(["--db", AWAY["RELIABLE_MQ_DATABASE"]])
    for place in places:
        monkeypatch.setenv("RELIABLE_MQ_APP", "" if place else shop)
        for form in ([], ["--json"] if "--json" in options else []):
            once = ["--once"] if words == "resend" else []
            printed = said(*words_of(words), *place, *once, *form)
            assert not leaks(printed), (words, place)
            assert "Traceback" not in printed, printed


@pytest.fixture
def servers(postgres_url: str, valkey_server: LocalValkey) -> dict[str, str]:
    """Give variables with the servers of the tests, which take any password.

    PostgreSQL trusts all logins, and Valkey's default user has no password.
    """
    place, _, name = postgres_url.rpartition("@")[2].partition("/")
    redis = f"redis://default:{PLANTED['redis']}@127.0.0.1:{valkey_server.port}/0"
    return {**environment(postgres(place, name), redis), "RELIABLE_MQ_DATABASES": "{}"}


def test_no_command_prints_a_secret_when_servers_are_there(
    shop: str, servers: dict[str, str], said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_only(monkeypatch, servers)
    monkeypatch.setenv("RELIABLE_MQ_APP", shop)
    first = ["create-tables", "migrate", "doctor"]

    for words in (*first, *sorted(COMMANDS.keys() - ENDLESS - {"reconcile", *first})):
        options = {name for param in COMMANDS[words].params for name in param.opts}
        once = ["--once"] if words == "resend" else []
        for form in ([], ["--json"] if "--json" in options else []):
            printed = said(*words_of(words), *once, *form)
            assert not leaks(printed), (words, printed)
            assert "Traceback" not in printed, printed


def test_a_test_of_notifiers_that_fails_shows_no_address_with_a_secret(
    shop: str, servers: dict[str, str], said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a mail server and a webhook that are away, then the errors have no password or path."""
    set_only(monkeypatch, {**servers, "RELIABLE_MQ_ESCALATION_TIMEOUT_SECONDS": "1"})
    said("create-tables", shop)
    for form in ([], ["--json"]):
        printed = said("notifiers", shop, "--test", *form)
        assert printed.startswith("1\n"), printed
        assert not leaks(printed), printed


def test_a_refused_login_is_told_without_the_password(
    postgres_server: LocalPostgres,
    shop: str,
    said: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given users that do not exist, then the servers' own words are printed, and no password."""
    with psycopg.connect(postgres_server.url.replace("+psycopg", ""), autocommit=True) as session:
        session.execute("SELECT 1")
    url = postgres(f"127.0.0.1:{postgres_server.port}").replace("postgres:", "nobody_here:")
    set_only(monkeypatch, {**AWAY, "RELIABLE_MQ_DATABASE": url})
    for words in ("stub list", "doctor", "create-tables", "pause", "notifiers"):
        printed = said(*words.split(), "--app", shop)
        assert "nobody_here" in printed, "the text of the server is shown"
        assert not leaks(printed), printed


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("database", f"postgresql+psycopg://u:{PLANTED['database']}/@h/d"),
        ("database", f"postgresql+psycopg://u:{PLANTED['database']}@h:port/d"),
        ("database", f"oddsql://u:{PLANTED['database']}@h/d"),
        ("database", f"mysql+pymysql://u@h?password={PLANTED['database']}"),
        ("database", f"postgresql+nodriver://u@h/d?password={PLANTED['database']}"),
        ("redis", f"redis://u:{PLANTED['redis']}/@h"),
        ("redis", f"http://u:{PLANTED['redis']}@h"),
        ("redis", f"redis://h/0?password={PLANTED['redis']}&odd=1"),
        ("signing_keys", PLANTED["signing"]),
        ("escalation_mail_server", f"smtp://u:{PLANTED['mail']}/@h"),
        ("escalation_webhook", f"https://u:{PLANTED['webhook_path']}@h/"),
        ("escalation_webhook_secret", PLANTED["webhook_key"]),
        ("databases", {"Other": f"sqlite:///{PLANTED['other_database']}"}),
        ("client", {"no_such": PLANTED["client"]}),
        ("client", {"credentials": PLANTED["client"]}),
    ],
)
def test_an_error_about_a_secret_shows_none_of_it(
    setting: str, value: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a wrong value, then neither the error, its causes, findings nor log lines show it."""
    given = {"database": f"sqlite:///{tmp_path}/x.db", "broker": NOWHERE, setting: value}
    if setting == "escalation_webhook_secret":
        given["escalation_webhook"] = "https://h/"
    told: list[object] = []
    try:
        mq = ReliableMQ("shop", **given)  # type: ignore[arg-type]
        told += mq.examine()
        mq.create_tables()
    except ReliableMQError as error:
        told += traceback.format_exception(error)
    except SQLAlchemyError as error:
        told.append(error)

    assert told
    assert not leaks(f"{told} {caplog.text}")


def test_no_repr_and_no_json_of_settings_has_a_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_only(monkeypatch, AWAY)
    settings = Settings(client={"namespace": PLANTED["client"]})
    mq = ReliableMQ("shop")
    credentials = Credentials(access_key="a", secret_key=PLANTED["secret_key"])
    client = ClientSettings(credentials=credentials)
    shown = [f"{each!r} {each}" for each in (settings, mq, mq.settings, credentials, client)]
    shown += [repr(vars(mq)), repr(dict(mq.databases)), settings.model_dump_json()]
    shown += [repr(mq.databases["main"])]
    mq.close()

    assert not leaks("\n".join(shown))
    assert pickle.loads(pickle.dumps(settings)) == settings, "a copy has all of it"
    assert load_settings(settings).database == settings.database


def shown_locals(error: BaseException) -> Iterator[str]:
    """Yield the local variables of our own frames, as error reporters record them."""
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.walk_tb(cause.__traceback__)
        for frame in traceback.StackSummary.extract(frames, capture_locals=True):
            if "reliable_mq" in Path(frame.filename).parts:
                yield from (
                    f"{frame.name}: {name}={value}" for name, value in (frame.locals or {}).items()
                )
        cause = cause.__cause__ or cause.__context__


def test_no_frame_of_ours_shows_a_secret_when_a_server_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given an error reporter that records local variables, then our frames have no secret."""
    set_only(monkeypatch, AWAY)
    mq = ReliableMQ("shop")

    def in_transaction() -> None:
        with mq.transaction() as tx:
            tx.send("orders", {})

    seen: list[str] = []
    for act in (mq.create_tables, in_transaction, lambda: mq.producer.send("orders", b"x")):
        with pytest.raises((SQLAlchemyError, ReliableMQError)) as raised:
            act()
        seen += shown_locals(raised.value)
    mq.close()

    assert len(seen) > 20
    assert not leaks("\n".join(seen))


def test_every_setting_that_may_have_a_secret_is_planted() -> None:
    """Given a new setting that is hidden in repr, then it has to be planted here, too."""
    hidden = {
        name
        for name, field in Settings.model_fields.items()
        if field.repr is False or "SecretStr" in repr(field.annotation)
    }

    assert {f"RELIABLE_MQ_{name.upper()}" for name in hidden} <= AWAY.keys()


def test_a_url_is_shown_without_passwords_wherever_they_are() -> None:
    url = "mysql+pymysql://u:a@h/d?password=b&passwd=c&ssl_key_password=d&charset=utf8&authToken=e"

    assert shown_url(url) == (
        "mysql+pymysql://u:***@h/d?authToken=***&charset=utf8&passwd=***&password=***"
        "&ssl_key_password=***"
    )


def command_lines(parent: int) -> Iterator[str]:
    """Yield the command lines of a process and of all that it started."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            behind_name = (folder / "stat").read_text().rpartition(")")[2]
            children.setdefault(int(behind_name.split()[1]), []).append(int(folder.name))
    waiting = [parent]
    while waiting:
        found = waiting.pop()
        waiting += children.get(found, [])
        with contextlib.suppress(OSError):
            yield Path(f"/proc/{found}/cmdline").read_text(errors="replace").replace("\0", " ")


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
@pytest.mark.parametrize("words", ["dev {shop} --no-reload", "run {shop} --processes 2"])
def test_the_processes_of_a_command_show_no_secret(
    words: str, shop: str, servers: dict[str, str], tmp_path: Path
) -> None:
    """Given a command that starts others, then no command line, log line or file has a secret."""
    variables = {name: value for name, value in os.environ.items() if "RELIABLE_MQ" not in name}
    variables |= servers
    command = [sys.executable, "-m", "reliable_mq.cli.main", *words.format(shop=shop).split()]
    seen: set[str] = set()

    def has_children() -> bool:
        seen.update(command_lines(process.pid))
        return len(seen) >= 3

    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(command, env=variables, stdout=out, stderr=out, cwd=tmp_path)
        try:
            until(has_children)
        finally:
            process.terminate()
            process.wait(30)

    assert not leaks("\n".join(seen))
    assert not leaks((tmp_path / "out").read_text())
    env = tmp_path / ".reliable-mq" / "env"
    if env.exists():
        assert env.stat().st_mode & 0o077 == 0, "the file with the URLs is for its owner only"
