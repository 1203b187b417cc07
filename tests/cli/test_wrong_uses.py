"""Wrong uses, in two lists: each gives one line that says what to do, and the right exit code.

The first list is typed at the command line. `wrong_code` and `wrong_objects` have the second one. A
module that cannot be imported also shows its own frames.
"""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tests.cli import wrong_code
from tests.cli.wrong_code import shop
from tests.cli.wrong_objects import IN_HAND

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import BAD_USAGE, DONE, FAILED, run
from reliable_mq.errors import ReliableMQError

MODULES = {
    "wrong_ok": "from reliable_mq import ReliableMQ\n"
    "mq = ReliableMQ('shop', database='sqlite:///shop.db', broker='127.0.0.1:1')\n"
    "number = 3\n",
    "wrong_none": "number = 3\n",
    "wrong_boom": "def f():\n    raise RuntimeError('no\\nway')\n\nf()\n",
    "wrong_syntax": "mq = (\n",
    "wrong_import": "import nosuchlibrary\n",
    "wrong_extra": "import sys\nsys.modules['aiomysql'] = None\nimport aiomysql\n",
    "wrong_exit": "import sys\nsys.exit(3)\n",
    "wrong_setting": "from reliable_mq import ReliableMQ\n\nmq = ReliableMQ('s', databse='x')\n",
    "wrong_name": "from reliable_mq import ReliableMQ\nmq = ReliableMQ('a shop')\n",
    "wrong_empty": "from reliable_mq import ReliableMQ\nmq = ReliableMQ('shop')\n",
    "wrong_url": "from reliable_mq import ReliableMQ\nmq = ReliableMQ('shop', redis='localhost')\n",
}
NOWHERE = ("--broker", "127.0.0.1:1")
TABLES = ("--db", "sqlite:///tables.db")
STORE = ("--store", "store", "--port", "0", "--namesrv-port", "0")

TYPED: list[tuple[str, int, str]] = [
    # the application
    ("run", BAD_USAGE, "no application is named: give MODULE:OBJECT, such as shop:mq, or set"),
    ("run wrong_ok", BAD_USAGE, "'wrong_ok' is not MODULE:OBJECT; write for example wrong_ok:mq"),
    ("run wrong_ok:", BAD_USAGE, "write for example wrong_ok:mq"),
    ("run :mq", BAD_USAGE, "write for example shop:mq"),
    ("run wrong_ok.py:mq", BAD_USAGE, "names a file: give its module, wrong_ok:mq"),
    ("run nowhere:mq", BAD_USAGE, "no module 'nowhere'; run from the directory that contains it"),
    ("run wrong_ok:nope", BAD_USAGE, "has no 'nope'; it has wrong_ok:mq"),
    ("run wrong_ok:number", BAD_USAGE, "is of type int, not a ReliableMQ; it has wrong_ok:mq"),
    ("run wrong_none:mq", BAD_USAGE, "it has none: write mq = ReliableMQ(…) there"),
    ("run wrong_exit:mq", BAD_USAGE, "(sys.exit(3)): put that below `if __name__ =="),
    ("run wrong_setting:mq", BAD_USAGE, "wrong_setting.py:3: there is no setting databse; did you"),
    ("run wrong_name:mq", BAD_USAGE, "wrong_name.py:2: application 'a shop' is not a legal name"),
    ("run wrong_ok:mq", BAD_USAGE, "decorate a handler, or name the module that imports them"),
    ("run wrong_ok.mq", BAD_USAGE, "'wrong_ok.mq' is not MODULE:OBJECT; write wrong_ok:mq"),
    ("run wrong_ok.number", BAD_USAGE, "write for example wrong_ok.number:mq"),
    ("run wrong_boom.mq", BAD_USAGE, "write for example wrong_boom.mq:mq"),
    ("stub list wrong_ok:mq", BAD_USAGE, "create-tables --app wrong_ok:mq"),
    ("dlq list wrong_ok:mq", BAD_USAGE, "create-tables --app wrong_ok:mq"),
    ("topic list wrong_ok:mq", FAILED, "no name server answers (127.0.0.1:1"),
    ("group list wrong_ok:mq", FAILED, "no name server answers (127.0.0.1:1"),
    ("stub list a:mq --app b:mq", BAD_USAGE, "two applications are named: a:mq and one by --app"),
    ("run wrong_ok:mq other:mq", BAD_USAGE, "two applications are named: wrong_ok:mq and other:mq"),
    ("stub list --since -1h --since -2h", BAD_USAGE, "--since is given 2 times: give it once"),
    ("stub void --topic a --topic=b --note x", BAD_USAGE, "--topic is given 2 times: give it once"),
    ("stub list wrong_ok:mq --app wrong_ok:mq", BAD_USAGE, "two applications are named"),
    ("stub show 1 wrong_ok:mq", BAD_USAGE, "is an option here: write --app wrong_ok:mq"),
    ("stub retry wrong_ok:mq", BAD_USAGE, "is an option here: write --app wrong_ok:mq"),
    ("topic show wrong_ok:mq", BAD_USAGE, "is an option here: write --app wrong_ok:mq"),
    ("group reset g wrong_ok:mq", BAD_USAGE, "is an option here: write --app wrong_ok:mq"),
    ("pause wrong_ok:mq", BAD_USAGE, "is an option here: write --app wrong_ok:mq"),
    ("doctor wrong_ok:mq --broker 127.0.0.1:2", BAD_USAGE, "--broker is for --db: application wr"),
    ("doctor wrong_ok:mq --redis redis://x", BAD_USAGE, "says its own (setting redis, or RELIAB"),
    ("resend wrong_ok:mq --broker 127.0.0.1:2", BAD_USAGE, "--broker is for --db"),
    ("stub list --app wrong_ok:mq --table-prefix x_", BAD_USAGE, "--table-prefix is for --db"),
    ("doctor a:mq --app b:mq", BAD_USAGE, "two applications are named: a:mq and --app b:mq; give"),
    (
        "resend wrong_ok:mq --db sqlite:///x.db",
        BAD_USAGE,
        "give either --app MODULE:OBJECT or --db",
    ),
    ("create-tables wrong_empty:mq", BAD_USAGE, "no database is set: set database=… or RELIABLE"),
    ("stub show 1 --app wrong_ok:mq", BAD_USAGE, "run reliable-mq create-tables --app wrong_ok:mq"),
    # the command line
    ("runn wrong_ok:mq", BAD_USAGE, "'runn': did you mean 'run'? See reliable-mq --help"),
    ("stub lst", BAD_USAGE, "'lst': did you mean 'list'? See reliable-mq stub --help"),
    ("run wrong_ok:mq --process 3", BAD_USAGE, "No such option: --process"),
    ("run wrong_ok:mq --processes 0", BAD_USAGE, "Invalid value for '--processes'"),
    ("run wrong_ok:mq more", BAD_USAGE, "unexpected extra argument"),
    ("init wrong_ok.py", BAD_USAGE, "wrong_ok.py is a file: give a new folder"),
    ("broker --store s --host 192.0.2.1 --port 0", FAILED, "choose another address: --host"),
    ("stub show", BAD_USAGE, "Missing argument 'MESSAGE'; see reliable-mq stub show --help"),
    ("stub list --status done", BAD_USAGE, "'done' is not one of 'unconfirmed', 'confirmed'"),
    # the database
    ("stub list", BAD_USAGE, "give either --app MODULE:OBJECT or --db URL; or set RELIABLE_MQ_APP"),
    ("stub list --db nonsense", BAD_USAGE, "write one like postgresql+psycopg://user@host/name"),
    ("stub list --db oracle://x", BAD_USAGE, "'oracle' is not supported; use postgresql+psycopg"),
    ("stub list --db sqlite:///typo.db", BAD_USAGE, "there is no file typo.db"),
    ("stub list --db sqlite:///empty.db", BAD_USAGE, "create-tables --db sqlite:///empty.db"),
    ("stub list --db sqlite:///text.db", FAILED, "file is not a database"),
    ("stub list --db postgresql://u:p@127.0.0.1:1/x", FAILED, "start the database, or correct its"),
    ("stub list --db mysql://u@127.0.0.1:1/x", FAILED, "start the database, or correct its URL"),
    ("create-tables --db sqlite:///no/where/x.db", BAD_USAGE, "there is no folder no/where: make"),
    ("migrate --db sqlite:///no/where/x.db", BAD_USAGE, "there is no folder no/where: make it"),
    ("create-tables --db sqlite:///x.db --table-prefix Bad-;", BAD_USAGE, "prefix"),
    ("stub list TABLES --database-name other", BAD_USAGE, "--database-name needs --app"),
    ("stub list TABLES --since yesterday", BAD_USAGE, "--since takes a time like 2026-11-20T08:00"),
    (
        "stub list TABLES --since -1h --until -2h",
        BAD_USAGE,
        "nothing is between --since -1h and",
    ),
    ("stub void TABLES --note x --since 2026-11-29 --until 2026-11-28", BAD_USAGE, "the later one"),
    ("message list t NOWHERE --since -1h --until -2h", BAD_USAGE, "the first is the later one"),
    ("dev wrong_ok:mq --broker localhost", BAD_USAGE, "it has no port; write localhost:9876"),
    ("stub show 4711 TABLES", BAD_USAGE, "sent without key= is found by its id only"),
    ("stub retry TABLES", BAD_USAGE, "give either MESSAGE_IDs or a filter such as --escalated"),
    ("stub void X --escalated TABLES", BAD_USAGE, "give either MESSAGE_IDs or a filter"),
    ("pause TABLES --until 2h", BAD_USAGE, "no topic is named: give its name"),
    ("pause orders TABLES --for 5m --end", BAD_USAGE, "give one of --until, --for and --end"),
    ("pause orders TABLES --for soon", BAD_USAGE, "--for takes a duration like"),
    ("migrate TABLES --sql --json", BAD_USAGE, "--sql cannot be used with --check or --json"),
    ("migrate TABLES --from-revision 0001", BAD_USAGE, "--from-revision needs --sql"),
    ("migrate TABLES --sql --from-revision 9999", BAD_USAGE, "there is no revision '9999'; this"),
    ("migrate TABLES --sql --from-revision head", BAD_USAGE, "there is no revision 'head'; this"),
    ("resend TABLES --json", BAD_USAGE, "--json needs --once"),
    ("doctor TABLES --key 4711", BAD_USAGE, "no ledger knows a message with the id or key 4711"),
    # Redis, the broker, the cluster
    ("doctor TABLES --redis localhost", BAD_USAGE, "is not a Redis URL: it must begin with redis:"),
    ("topic list", BAD_USAGE, "no cluster is named: give --broker HOST:PORT of a name server, or"),
    ("topic list --broker localhost", BAD_USAGE, "it has no port; write localhost:9876"),
    ("topic list --broker http://h:80", BAD_USAGE, "leave http:// out, and write h:80"),
    ("topic list --broker embedded:x", BAD_USAGE, "start reliable-mq broker and give --broker"),
    ("topic list NOWHERE", FAILED, "start one (reliable-mq broker), or correct the address"),
    ("message show x NOWHERE", BAD_USAGE, "a message id is looked up with --topic"),
    ("group reset g t NOWHERE", BAD_USAGE, "give one of --to-time, --to-start, --to-end and"),
    ("dlq list TABLES", BAD_USAGE, "dead letters are at the broker: give --app, or --broker"),
    ("dlq list NOWHERE", FAILED, "start one (reliable-mq broker), or correct the address"),
    ("dlq retry NOWHERE", BAD_USAGE, "give either MESSAGE_IDs or a filter such as --group"),
    ("dlq retry --waiting --also-settled NOWHERE", BAD_USAGE, "either --waiting or --also-settled"),
    ("broker", BAD_USAGE, "--store is missing: name the folder of the store"),
    ("broker store", BAD_USAGE, "the store is an option here: write --store store"),
    ("broker --store text.db --port 0", FAILED, "choose a folder you can write"),
    ("broker STORE --set flush", BAD_USAGE, "--set flush: write name=value"),
    ("broker STORE --config nope.conf", BAD_USAGE, "--config nope.conf: No such file"),
    ("broker STORE --host 300.0.0.1", BAD_USAGE, "300.0.0.1"),
    # reconciliation: 2 means findings there
    ("reconcile --store x", FAILED, "--db is missing, or --app MODULE:OBJECT; or set RELIABLE_MQ"),
    ("reconcile TABLES", FAILED, "--store is missing: the broker's store directory; or --broker"),
    ("reconcile TABLES --store nowhere", FAILED, "nowhere is not a store directory"),
    ("reconcile wrong_ok:mq TABLES", FAILED, "give either --app MODULE:OBJECT or --db URL"),
    ("reconcile nowhere:mq", FAILED, "no module 'nowhere'"),
    # a project, and everything for it
    ("init .", BAD_USAGE, "exists: give a new folder, such as reliable-mq init shop"),
    ("dev", BAD_USAGE, "no application is named: give MODULE:OBJECT, such as shop:mq, or set"),
    ("dev wrong_ok:mq --also=", BAD_USAGE, "--also is empty: give COMMAND, or leave it out"),
    (
        "dev wrong_ok:mq --before 'alembic",
        BAD_USAGE,
        "No closing quotation; quote it as in a shell",
    ),
    # what an application declares
    ("asyncapi", BAD_USAGE, "no application is named: give MODULE:OBJECT, such as shop:mq, or set"),
    ("periodic list", BAD_USAGE, "no application is named: give MODULE:OBJECT"),
    ("periodic next nightly --app wrong_ok:mq", BAD_USAGE, "message nightly; there are: none"),
    ("schema check --app wrong_ok:mq", BAD_USAGE, "no folder schemas: write it with reliable-mq"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with modules, most of them wrong, and with some databases."""
    made = tmp_path_factory.mktemp("wrong")
    for name, text in MODULES.items():
        (made / f"{name}.py").write_text(text)
    (made / "README.md").touch()
    (made / "empty.db").touch()
    (made / "text.db").write_text("no database" * 100)
    mq = ReliableMQ("shop", database=f"sqlite:///{made}/tables.db")
    mq.create_tables()
    mq.close()
    return made


@pytest.fixture
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a test run in that folder, without variables of ours."""
    for name in [name for name in os.environ if name.startswith("RELIABLE_MQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    path, before = list(sys.path), sys.modules.get("aiomysql")
    yield
    sys.modules.pop("aiomysql", None)
    if before is not None:
        sys.modules["aiomysql"] = before
    sys.path[:] = path
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(("typed", "code", "says"), TYPED, ids=[each[0] for each in TYPED])
def test_a_wrong_command_line_is_one_line_that_says_what_to_do(
    typed: str, code: int, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words: list[str] = []
    groups = {"NOWHERE": NOWHERE, "TABLES": TABLES, "STORE": STORE}
    for word in typed.split():
        words += groups.get(word, (word,))
    with pytest.raises(SystemExit) as ended:
        run(words)
    out, err = capfd.readouterr()

    lines = [line for line in err.splitlines() if line]
    assert lines[-1].startswith("error: "), err
    assert says in lines[-1]
    assert (len(lines), out) == (1, "")
    assert ended.value.code == code
    assert ":p@" not in err, "a password is not shown"


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("module", "frames", "says"),
    [
        ("wrong_boom", 2, "the module 'wrong_boom' cannot be imported: RuntimeError: no way"),
        ("wrong_syntax", 1, "cannot be imported: SyntaxError: '(' was never closed"),
        ("wrong_import", 1, "ModuleNotFoundError: No module named 'nosuchlibrary'"),
        ("wrong_extra", 1, "aiomysql is not installed; pip install 'reliable-mq[mysql]'"),
    ],
)
def test_a_module_with_an_error_shows_its_own_frames_and_one_line(
    module: str, frames: int, says: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["run", f"{module}:mq"])
    err = capfd.readouterr().err

    files = [line.split('"')[1] for line in err.splitlines() if line.startswith('  File "')]
    assert files == [str(folder / f"{module}.py")] * frames
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert says in last
    assert ended.value.code == BAD_USAGE


WRITTEN = wrong_code.WRITTEN | IN_HAND
assert len(TYPED) + len(WRITTEN) >= 60


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("name", WRITTEN)
def test_wrong_code_is_an_error_of_one_line_that_says_what_to_do(name: str) -> None:
    use, says = WRITTEN[name]

    with pytest.raises(ReliableMQError) as found:
        use()

    assert says in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {"BROKER": "127.0.0.1"},
            "RELIABLE_MQ_BROKER: name server '127.0.0.1' is no host:port: it",
        ),
        ({"BROKER": "127.0.0.1"}, "it has no port; write 127.0.0.1:9876"),
        (
            {"BROKER": "127.0.0.1:1", "ACCESS_KEY": "x"},
            "access_key has no secret_key: set secret_key (RELIABLE_MQ_SECRET_KEY), too",
        ),
        (
            {"BROKER": "127.0.0.1:1", "SECRET_KEY": "x"},
            "secret_key has no access_key: set access_key (RELIABLE_MQ_ACCESS_KEY), too",
        ),
    ],
)
def test_a_wrong_variable_is_named(
    variables: dict[str, str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"RELIABLE_MQ_{name}", value)
    with pytest.raises(SystemExit) as ended:
        run(("topic", "list"))
    out, err = capfd.readouterr()

    assert (ended.value.code, out, err.count("\n")) == (BAD_USAGE, "", 1)
    assert says in err


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("verb", ["broker --store s", "namesrv"])
def test_a_port_in_use_names_the_option_for_another_one(
    verb: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--port", "--namesrv-port") if verb.startswith("broker") else ("--port",):
            ports = {"--port": "0", "--namesrv-port": "0"} if verb.startswith("broker") else {}
            words = [word for each in (ports | {option: port}).items() for word in each]
            with pytest.raises(SystemExit) as ended:
                run([*verb.split(), *words])
            err = capfd.readouterr().err

            assert ended.value.code == FAILED
            assert err.endswith(f"choose another address: {option} (0: a free one)\n")


@pytest.mark.usefixtures("there")
def test_a_status_is_typed_in_any_case(capfd: pytest.CaptureFixture[str]) -> None:
    for status in ("unconfirmed", "UNCONFIRMED", "Voided"):
        with pytest.raises(SystemExit) as ended:
            run(("stub", "list", "--status", status, *TABLES, "--json"))
        assert (ended.value.code, capfd.readouterr().out) == (DONE, "[]\n")


@pytest.mark.usefixtures("there")
def test_the_pause_of_a_topic_that_nobody_has_warns(capfd: pytest.CaptureFixture[str]) -> None:
    mq = shop()
    with mq.transaction() as tx:
        tx.send("paused-orders", {})
    mq.close()
    capfd.readouterr()
    warned = {}
    for topic in ("paused-orders", "paused-ordrs"):
        with pytest.raises(SystemExit) as ended:
            run(("pause", topic, "--for", "2h", *TABLES))
        out, warned[topic] = capfd.readouterr()
        assert (ended.value.code, out) == (DONE, f"{topic} paused\n")

    assert warned == {
        "paused-orders": "",
        "paused-ordrs": "warning: no stub and no consumer has topic paused-ordrs\n",
    }


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("verb", ["void", "retry"])
def test_a_stub_that_stays_says_whether_it_is_missing_or_settled(
    verb: str, capfd: pytest.CaptureFixture[str]
) -> None:
    mq = shop()
    with mq.transaction() as tx:
        message_id = tx.send("orders", {})
    with mq.database.engine.begin() as connection:
        connection.execute(mq.database.stubs.update().values(status=1))
    mq.close()
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        run(("stub", verb, "nosuch", message_id, *TABLES))

    assert ended.value.code == FAILED
    hint = f"if it is a key: reliable-mq stub show nosuch {' '.join(TABLES)}"
    assert capfd.readouterr().out.splitlines() == [
        f"nosuch {verb}: there is no such stub; {hint}",
        f"{message_id} {verb}: it is CONFIRMED",
    ]


BLOCK, HANDLER = r"write `with mq.transaction\(\) as tx: tx.send\(", "write @mq.consumer.*handler"
LEAD = {"send": BLOCK, "publish": BLOCK, "subscriber": HANDLER, "task": HANDLER}


@pytest.mark.usefixtures("there")
def test_a_send_of_the_application_or_of_no_block_says_how_to_write_it() -> None:
    """Given an attribute that there is not, then type checkers see that, too."""
    mq: Any = shop()
    for owner in (mq, mq.transaction()):
        for name, says in LEAD.items():
            with pytest.raises(AttributeError, match=says):
                getattr(owner, name)
        with pytest.raises(AttributeError, match=r"has no attribute .colour.$"):
            _ = owner.colour
        assert not hasattr(owner, "send")
        assert "__getattr__" in vars(type(owner))


@pytest.mark.usefixtures("there")
def test_a_session_of_a_block_may_use_savepoints_and_one_of_the_caller_may_commit() -> None:
    mq = shop()
    with mq.transaction() as tx, tx.session.begin_nested():
        message_id = tx.send("orders", {})
    with mq.database.session() as session:
        with mq.transaction(session) as tx:
            session.execute(select(1))
            tx.send("orders", {})
        session.execute(select(1))
        session.commit()
    assert message_id
    mq.close()
