"""Makes steps of what a process does to the world; see `crash_points`.

Receives a function that is called at each step; hands on nothing. It looks from outside, at the
seams of SQLAlchemy, redis-py, the client's links and the standard library: no station knows it.
A step is named by what it is and, for a statement, by the function that wanted it:

    outbox.sql_stubs.SqlStubs.insert: before INSERT rmq_message_stub
    consume.sql_consume_transaction.ConsumeTransaction.complete: after COMMIT
    redis: after claim
    broker: sent PULL_MESSAGE
    broker: answered PULL_MESSAGE
    client: before acknowledge
    file: before rename to summary.json
"""

import asyncio
import functools
import hashlib
import re
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files as files_of
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import greenlet
import redis.asyncio.connection
import redis.connection
from sqlalchemy import Engine, event
from sqlalchemy.engine.default import DefaultDialect

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.database import sql_chained_commits
from reliable_mq.runtime.link import Link
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, decode_command
from reliable_mq.wire.frame import FrameReader

Step = Callable[[str], None]

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_PACKAGE = "reliable_mq."
# They pass on what others want.
_CARRIERS = tuple(
    f"{_PACKAGE}{name}"
    for name in (
        *("testing.", "database.sql_handler_session", "database.sql_database"),
        *("database.sql_chained_commits", "database.sql_libpq"),
        *("database.sql_transactions", "database.sql_caller_connections"),
        *("database.thread_world", "database.asyncio_world"),
    )
)
_TABLE = re.compile(r'\b(?:INTO|FROM|UPDATE|TABLE|LISTEN|NOTIFY)\s+"?(\w+)', re.IGNORECASE)
_current_greenlet: Any = greenlet.getcurrent
_AUDITED = {"smtplib.send": "mail", "http.client.send": "http"}
# Audit events of changes of files, and which of their arguments names what is changed.
_AUDITED_FILES = {
    "os.mkdir": ("mkdir", 0),
    "os.remove": ("remove", 0),
    "os.rename": ("rename to", 1),
    "os.rmdir": ("rmdir", 0),
    "os.symlink": ("symlink", 1),
}


def watch(step: Step, *, files: bool = False) -> None:
    """Call `step` with its name at every step that this process takes from now on.

    `files`: whether making, naming and removing files are steps, too.
    """
    _watch_statements(step)
    _watch_redis(step)
    _watch_links(step)
    _watch_acknowledgements(step)

    def audit(what: str, arguments: Any) -> None:
        if what in _AUDITED:
            step(f"{_AUDITED[what]}: before send")
        elif files and what in _AUDITED_FILES:
            verb, place = _AUDITED_FILES[what]
            step(f"file: before {verb} {Path(arguments[place]).name}")
        elif files and what == "open" and set(arguments[1] or "") & set("wax+"):
            step(f"file: before open {Path(arguments[0]).name}")

    sys.addaudithook(audit)


def statement_name(statement: str) -> str:
    """Return what a statement is: its verb, and the first table it names."""
    words = statement.split()
    verb = " ".join(words[:2]) if words[0].upper() in {"BEGIN", "RELEASE"} else words[0]
    if verb.upper() == "ROLLBACK" and len(words) > 1:
        verb = "ROLLBACK TO SAVEPOINT"
    table = _TABLE.search(statement)
    return f"{verb.upper()} {table[1]}" if table else verb.upper()


def wanted_by() -> str:
    """Return the innermost function on the stack that is neither a library's nor a carrier's."""
    frame: Any = sys._getframe(1)
    here: Any = _current_greenlet()
    while True:
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            ours = module.startswith(_PACKAGE) and not module.startswith(_CARRIERS)
            if ours or not (
                module.startswith(_PACKAGE)
                or frame.f_code.co_filename.startswith((*_LIBRARIES, "<"))
            ):
                return f"{module.removeprefix(_PACKAGE)}.{frame.f_code.co_qualname}"
            frame = frame.f_back
        # An asynchronous session works on a greenlet of its own, below the task that awaits it.
        here = here.parent
        if here is None:
            return "elsewhere"
        frame = here.gr_frame


def _watch_statements(step: Step) -> None:
    @event.listens_for(Engine, "before_cursor_execute")
    def _before(_connection: object, _cursor: object, statement: str, *_: Any) -> None:
        step(f"{wanted_by()}: before {statement_name(statement)}")

    @event.listens_for(Engine, "after_cursor_execute")
    def _after(_connection: object, _cursor: object, statement: str, *_: Any) -> None:
        step(f"{wanted_by()}: after {statement_name(statement)}")

    @event.listens_for(Engine, "rollback")
    def _rollback(_connection: object) -> None:
        step(f"{wanted_by()}: before ROLLBACK")

    do_commit: Any = DefaultDialect.do_commit

    def commit(self: DefaultDialect, connection: Any) -> None:
        step(f"{wanted_by()}: before COMMIT")
        do_commit(self, connection)
        step(f"{wanted_by()}: after COMMIT")

    DefaultDialect.do_commit = commit  # type: ignore[method-assign]
    chain = sql_chained_commits.commit_and_chain

    def commit_and_chain(connection: Any) -> None:
        step(f"{wanted_by()}: before COMMIT")
        chain(connection)
        step(f"{wanted_by()}: after COMMIT")

    sql_chained_commits.commit_and_chain = commit_and_chain


def _scripts() -> dict[bytes, str]:
    """Return the names of our Lua scripts by the digest under which Redis knows them."""
    found = {}
    for path in files_of("reliable_mq.idempotency").iterdir():
        if path.name.endswith(".lua"):
            digest = hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
            found[digest.encode()] = path.name.removesuffix(".lua")
    return found


def commands_in(packed: bytes, scripts: dict[bytes, str]) -> Iterator[str]:
    """Yield the name of each command in a request to Redis; of a script of ours, its own."""
    at = 0
    while at < len(packed):
        end = packed.index(b"\r\n", at)
        count, at = int(packed[at + 1 : end]), end + 2
        parts = []
        for _ in range(count):
            end = packed.index(b"\r\n", at)
            size = int(packed[at + 1 : end])
            parts.append(packed[end + 2 : end + 2 + size])
            at = end + 2 + size + 2
        verb = parts[0].upper()
        digest = parts[1] if verb == b"EVALSHA" else b""
        yield scripts.get(digest) or verb.split()[0].decode()


def _joined(packed: bytes | str | Iterable[bytes]) -> bytes:
    if isinstance(packed, str):
        return packed.encode()
    return packed if isinstance(packed, bytes) else b"".join(packed)


class _Asked:
    """What a connection to Redis was asked and has not answered: names, and answers to come."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._scripts = _scripts()
        self._waiting: WeakKeyDictionary[Any, deque[list[Any]]] = WeakKeyDictionary()

    def before(self, connection: Any, packed: Any) -> bytes:
        whole = _joined(packed)
        names = list(commands_in(whole, self._scripts))
        name = "+".join(dict.fromkeys(names))
        self._step(f"redis: before {name}")
        self._waiting.setdefault(connection, deque()).append([name, len(names)])
        return whole

    def after(self, connection: Any) -> None:
        waiting = self._waiting.get(connection)
        if waiting:
            waiting[0][1] -= 1
            if waiting[0][1] == 0:
                self._step(f"redis: after {waiting.popleft()[0]}")


def _watch_redis(step: Step) -> None:
    asked = _Asked(step)
    for synchronous in (True, False):
        kind = (
            redis.connection.AbstractConnection
            if synchronous
            else redis.asyncio.connection.AbstractConnection
        )
        _watch_connections(kind, asked, synchronous=synchronous)


def _watch_connections(kind: Any, asked: _Asked, *, synchronous: bool) -> None:
    send, read = kind.send_packed_command, kind.read_response

    def sync_send(self: Any, command: Any, *more: Any, **named: Any) -> None:
        send(self, [asked.before(self, command)], *more, **named)

    def sync_read(self: Any, *given: Any, **named: Any) -> Any:
        answer = read(self, *given, **named)
        asked.after(self)
        return answer

    async def async_send(self: Any, command: Any, *more: Any, **named: Any) -> None:
        await send(self, [asked.before(self, command)], *more, **named)

    async def async_read(self: Any, *given: Any, **named: Any) -> Any:
        answer = await read(self, *given, **named)
        asked.after(self)
        return answer

    kind.send_packed_command = sync_send if synchronous else async_send
    kind.read_response = sync_read if synchronous else async_read


class _WatchedTransport:
    """A link's transport that makes a step before each frame and when it has left."""

    def __init__(self, transport: asyncio.Transport, link: "Link", step: Step) -> None:
        self._transport = transport
        self._step = step
        self._names: dict[int, str] = {}
        self._loop = asyncio.get_running_loop()
        _transports[link] = self

    def write(self, data: bytes) -> None:
        for frame in FrameReader().feed(data):
            command = decode_command(frame)
            name = "an answer" if command.is_reply else _request_name(command)
            self._names[command.opaque] = name
            self._step(f"broker: before {name}")
            # uvloop hands bytes to the system at the end of the loop's turn.
            self._loop.call_soon(self._step, f"broker: sent {name}")
        self._transport.write(data)

    def asked_as(self, opaque: int) -> str:
        return self._names.get(opaque, "nothing we know")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


_transports: "WeakKeyDictionary[Link, _WatchedTransport]" = WeakKeyDictionary()


def _request_name(command: Command) -> str:
    try:
        return RequestCode(command.code).name
    except ValueError:
        return str(command.code)


def _watch_links(step: Step) -> None:
    made, was_answered, was_asked = Link.connection_made, Link._answered, Link._asked

    def connection_made(self: Link, transport: Any) -> None:
        made(self, _WatchedTransport(transport, self, step))  # type: ignore[arg-type]

    def answered(self: Link, command: Command) -> None:
        watched = _transports.get(self)
        step(f"broker: answered {watched.asked_as(command.opaque) if watched else '?'}")
        was_answered(self, command)

    def asked(self: Link, command: Command) -> None:
        step(f"broker: asked by {_request_name(command)}")
        was_asked(self, command)

    Link.connection_made = connection_made  # type: ignore[method-assign]
    Link._answered = answered  # type: ignore[method-assign]
    Link._asked = asked  # type: ignore[method-assign]


def _watch_acknowledgements(step: Step) -> None:
    for name, verb in (("finish", "acknowledge"), ("postpone", "hold back")):
        method = getattr(AssignedQueue, name)

        def called(self: Any, *given: Any, _method: Any, _verb: str, **named: Any) -> Any:
            step(f"client: before {_verb}")
            answer = _method(self, *given, **named)
            step(f"client: after {_verb}")
            return answer

        setattr(AssignedQueue, name, functools.partialmethod(called, _method=method, _verb=verb))
