"""Starts an increment of reconciliation, as `reliable-mq reconcile --increment` does.

It runs Spark, so it is a process of its own, with that command. It gets the databases and the
broker of the console by its environment, because everybody at the machine can read a command line.
Two increments cannot both follow one run: the database refuses the second. So one console begins
one at a time, and of two consoles the later one is told.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from msgspec.structs import asdict
from sqlalchemy import MetaData, inspect, select

from reliable_mq.cli.reconcile_sources import PREFIX_VARIABLE
from reliable_mq.cli.shared_options import (
    APPLICATION_VARIABLE,
    BROKER_VARIABLE,
    DATABASE_VARIABLE,
)
from reliable_mq.client.settings import ClientSettings
from reliable_mq.console.deeds import Chosen, Deed, NothingToDo, Preview, Sealed
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.sql_work_audit import begin_work, end_work
from reliable_mq.console.users import Role
from reliable_mq.console.work import Order, Outcome, Part
from reliable_mq.database.sql_run_tables import run_table
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.errors import ReliableMQError
from reliable_mq.plain_text import printable
from reliable_mq.settings import VARIABLE_PREFIX

ACTION = "reconcile increment"
_INCREMENT = "increment"
"""The kind of a run. The module that writes it needs what the extra `spark` installs."""
COMMAND = (sys.executable, "-m", "reliable_mq.cli.reconcile")
OUT = "reconcile-output"
"""The folder of the results if no increment was ever made, as the command has it."""
LOOK_SECONDS, STOP_SECONDS = 0.5, 8.0
_TOLD = ("run_id", "findings_total")
ENDS = (0, 2)
"""The exit codes of a run that has ended: clean, and with findings."""
_ACCESS = (
    *("access_key", "secret_key", "security_token"),
    *("tls", "tls_ca", "tls_cert", "tls_key", "tls_hostname", "tls_verify"),
)
"""The settings of an account and of TLS; each is a variable, too."""
_OF_CONSOLE = f"{VARIABLE_PREFIX}CONSOLE_"
"""Begins the variables of the console: secrets of its sessions, and of its log-in."""
ERROR_LENGTH_MAX, SUMMARY_BYTES_MAX = 300, 64 << 20
_ONE = threading.Lock()
"""Held while this process has an increment."""


class IncrementFailed(ReliableMQError):
    """The process of an increment has failed; the text is its last line."""


def _last(sources: ConsoleSources) -> Mapping[str, Any] | None:
    """Return the newest increment of the first database; None: there was none."""
    with sources.reading(next(iter(sources.databases))) as (database, connection):
        table = run_table(MetaData(), database.prefix)
        if not inspect(connection).has_table(table.name):
            return None
        column = table.c
        wanted = select(column.run_id, column.report, column.finish_date, column.grace_seconds)
        newest = wanted.where(column.kind == _INCREMENT).order_by(column.run_id.desc()).limit(1)
        row = connection.execute(newest).first()
    return None if row is None else dict(row._mapping)


def increment_words(options: Sequence[str], last: Mapping[str, Any] | None) -> list[str]:
    """Return the options of the command: those of the console, and the folder and grace before.

    Raises:
        NothingToDo: the folder of the last increment is not at this machine.
    """
    words = ["--increment", "--json", *options]
    if last is not None and not _is_given("--grace", options):
        words += ["--grace", f"{float(last['grace_seconds']):g}s"]
    if _is_given("--out", options):
        return words
    if last is None or not last["report"]:
        return [*words, "--out", OUT]
    out = last["report"].rsplit("/", 2)[0]
    if "://" not in out and not Path(out).is_dir():
        raise NothingToDo(
            f"the last increment lies in {out}, which this machine does not have: start the"
            " console with --increment-options '--out DIR'"
        )
    return [*words, "--out", out]


def _is_given(name: str, options: Sequence[str]) -> bool:
    return any(each == name or each.startswith(f"{name}=") for each in options)


def _look(sources: ConsoleSources, _chosen: Chosen) -> Preview:
    if find_spec("pyspark") is None:
        raise NothingToDo(
            "pyspark is not installed where the console runs; pip install 'reliable-mq[spark]'"
        )
    if _ONE.locked():
        raise NothingToDo("an increment is under way already: see Work")
    increment_environment(sources, {})
    last = _last(sources)
    words = increment_words(sources.increment_options, last)
    after = "everything, because there was no increment yet"
    if last is not None:
        after = f"what has changed since run {last['run_id']}, {last['finish_date']:%Y-%m-%d %H:%M}"
    clock = next(iter(sources.databases.values())).clock
    return Preview(
        total=1,
        lines=[f"reads {after}", f"databases {', '.join(sources.databases)}", " ".join(words)],
        happens=[
            "Messages that changed, and those that are open, are judged again.",
            "The run and its findings are in the list Reconciliation when it has ended.",
            "Nothing is repaired.",
            "It runs as a process beside the console, and takes its processors and memory.",
        ],
        doubles=[],
        seen_at=utc_datetime(clock.measured_now()),
    )


def _parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
    if not _ONE.acquire(blocking=False):
        yield Part({Outcome.CHANGED: 1}, ("another increment is under way: see Work",))
        return
    try:
        yield from _begun(sources, sealed, order)
    finally:
        _ONE.release()


def _begun(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
    database = next(iter(sources.databases.values()))
    words = increment_words(sources.increment_options, _last(sources))
    if not begin_work(database, order, ACTION, sealed.preview.seen_at):
        yield Part({Outcome.CHANGED: 1}, ("it was begun before: see the audit",))
        return
    summary: dict[str, Any] = {}
    fault = "it was cancelled"
    try:
        for told in _carried_out(sources, words):
            if isinstance(told, str):
                yield Part({}, (told,) if told else ())
            else:
                summary = told
        fault = ""
    except (ReliableMQError, OSError) as error:
        fault = str(error)
        raise
    finally:
        on: dict[str, Any] = {name: summary[name] for name in _TOLD if name in summary}
        end_work(database, order, on, fault)
    yield Part({Outcome.DONE: 1}, (_line(summary),))


def _line(summary: Mapping[str, Any]) -> str:
    found = summary.get("findings_total")
    result = "clean" if summary.get("clean") else f"{found} findings"
    return f"run {summary.get('run_id')}: {result}"


def increment_environment(sources: ConsoleSources, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the command: the databases, the broker, the account and TLS.

    What code gives to the application is not in the environment of the console. The secrets of the
    console itself are of no use to the command.

    Raises:
        NothingToDo: the application has what variables cannot say, or the command refuses.
    """
    client = sources.client_settings
    if client.namespace:
        raise NothingToDo(
            f"reconciliation does not support the namespace {client.namespace}: stubs name topics"
            " without it, the log with it"
        )
    databases = sources.databases.values()
    urls = [each.url.render_as_string(hide_password=False) for each in databases]
    if any(each.split() != [each] for each in urls):
        raise NothingToDo("the URL of a database has a space: an increment cannot get it")
    ours = {
        DATABASE_VARIABLE: " ".join(urls),
        PREFIX_VARIABLE: next(iter(databases)).prefix,
        BROKER_VARIABLE: sources.broker,
    }
    return _without_ours(inherited) | ours | _access_variables(client)


def _without_ours(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those that the console gives, and without its own secrets."""
    given = {f"{VARIABLE_PREFIX}{name}".upper() for name in ("client", "namespace", *_ACCESS)}
    return {
        name: text
        for name, text in inherited.items()
        if name.upper() not in given | {APPLICATION_VARIABLE}
        and not name.upper().startswith(_OF_CONSOLE)
    }


def _access_variables(client: ClientSettings) -> dict[str, str]:
    given: dict[str, str] = {}
    if client.credentials is not None:
        given |= asdict(client.credentials)
    if client.tls is not None:
        tls = client.tls
        files = {"ca": tls.ca, "cert": tls.cert, "key": tls.key, "hostname": tls.hostname}
        given |= {"tls": "true", "tls_verify": str(tls.verify).lower()}
        given |= {f"tls_{name}": text for name, text in files.items()}
    return {f"{VARIABLE_PREFIX}{name.upper()}": text for name, text in given.items() if text}


def _carried_out(sources: ConsoleSources, words: Sequence[str]) -> Iterator[str | dict[str, Any]]:
    """Run the command; yield a line of it, or "", twice a second, and at last its summary.

    If the reader stops, the process is stopped.

    Raises:
        IncrementFailed: it has failed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [*COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=said,
            env=increment_environment(sources, os.environ),
            start_new_session=True,  # Ctrl-C at the console must not kill it in the middle
        )
        told = _Told(said)
        try:
            while True:
                try:
                    process.wait(LOOK_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    yield told.news()
        finally:
            _stop(process)
        told.news()
        if process.returncode not in ENDS:
            raise IncrementFailed(told.last or f"it ended with exit code {process.returncode}")
        yield _summary(out)


class _Told:
    """What a process says in its file: news, and the last line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._read_to = 0
        self.last = ""

    def news(self) -> str:
        """Return the newest line since the last call; "": there is none."""
        self._file.seek(self._read_to)
        text = self._file.read(65_536).decode("utf-8", "replace")
        self._read_to = self._file.tell()
        lines = [each for each in text.replace("\r", "\n").splitlines() if each.strip()]
        if not lines:
            return ""
        self.last = printable(lines[-1].strip(), ERROR_LENGTH_MAX)
        return self.last


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop a process that still runs, as Ctrl-C does: it removes what it has begun."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _summary(out: BinaryIO) -> dict[str, Any]:
    out.seek(0)
    try:
        found = json.loads(out.read(SUMMARY_BYTES_MAX))
    except ValueError as error:
        raise IncrementFailed("it has ended, and its summary cannot be read") from error
    return found if isinstance(found, dict) else {}


START_INCREMENT = Deed(
    name="increment-start",
    title="Start an increment",
    role=Role.OPERATOR,
    of_list=None,
    look=_look,
    parts=_parts,
    back="/runs",
)
