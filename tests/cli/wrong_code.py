"""What is written wrong in code, in one list: the use, and the sentence that says what to do."""

import asyncio
import copy
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine

from reliable_mq import (
    TLS,
    Client,
    ClientSettings,
    Credentials,
    Message,
    Reject,
    ReliableMQ,
    Retry,
    Subscription,
    schema,
)
from reliable_mq.cli.metrics import serve_metrics


def shop(**options: Any) -> ReliableMQ:
    return ReliableMQ("shop", **({"database": "sqlite:///tables.db"} | NOWHERE_SETTING | options))


NOWHERE_SETTING: dict[str, Any] = {"broker": "127.0.0.1:1"}


def sent(*given: Any, **options: Any) -> None:
    mq = shop()
    try:
        with mq.transaction() as tx:
            tx.send(*given, **options)
    finally:
        mq.close()


def sent_many(payloads: Any, **options: Any) -> None:
    with shop().transaction() as tx:
        tx.send_many("orders", payloads, **options)


def at_client(verb: str, *given: Any, **options: Any) -> None:
    with Client("127.0.0.1:1") as client:
        getattr(client, verb)(*given, **options)


def without(module: str, use: Callable[[], object]) -> object:
    """Run code as if a module were not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        patch.delitem(sys.modules, "reliable_mq.migrations.sql_upgrade", raising=False)
        return use()


async def asynchronous() -> None:
    async with shop().transaction():
        pass


def odd(**given: Any) -> dict[str, Any]:
    """Return what a type checker would refuse."""
    return given


@dataclass
class Placed:
    by: object


class Model(BaseModel):
    id: int


def handler(payload: dict[str, Any]) -> None:
    """Handle nothing."""


def other(payload: dict[str, Any]) -> None:
    """Handle nothing, too."""


def once(*, request: str | None) -> None:
    """Do nothing."""


def handled_twice() -> None:
    mq = shop()
    for each in (handler, other):
        mq.consumer("orders", group="payments")(each)


def commits_itself() -> None:
    mq = shop()
    try:
        with mq.transaction() as tx:
            tx.send("orders", {})
            tx.session.commit()
    finally:
        with mq.database.engine.connect() as connection:
            assert connection.execute(mq.database.stubs.select()).all() == [], "it commits nothing"
        mq.close()


async def commits_itself_asynchronously() -> None:
    mq = shop()
    try:
        async with mq.transaction() as tx:
            await tx.send("orders", {})
            await tx.session.commit()
    finally:
        await mq.database.close_async()


def bare(verb: str) -> None:
    """Use a decorator without its parentheses."""
    decorate: Any = getattr(shop(), verb)
    decorate(handler)


THREE: Any = 3
MESSAGE: dict[str, Any] = {"topic": "orders", "body": b"x"}
SUBSCRIPTION: dict[str, Any] = {"group": "g", "topics": {"t": "*"}}

WRITTEN: dict[str, tuple[Callable[[], object], str]] = {
    "a misspelt setting": (lambda: shop(resend_batch_cuont=3), "did you mean resend_batch_count?"),
    "a setting that is like none": (
        lambda: shop(colour=1),
        "there is no setting colour; there are",
    ),
    "a setting that is too large": (lambda: shop(resend_batch_count=10**9), "resend_batch_count"),
    "a setting of the client": (
        lambda: shop(client={"retires": 3}).producer.send("orders", {}),
        "did you mean retries?",
    ),
    "ClientSettings": (lambda: ClientSettings(**odd(retires=3)), "did you mean retries?"),
    "ClientSettings of a wrong type": (
        lambda: ClientSettings(**odd(retries="3")),
        "retries is of type str, it must be int",
    ),
    "Subscription": (
        lambda: Subscription(**SUBSCRIPTION, **odd(concurency=3)),
        "Subscription has no 'concurency'; did you mean concurrency?",
    ),
    "Subscription to a text": (
        lambda: Subscription(**SUBSCRIPTION | {"topics": "orders"}),
        'give a dict of topics and tags, such as {"orders": "*"}',
    ),
    "Message": (
        lambda: Message(**MESSAGE, **odd(tga="x")),
        "Message has no 'tga'; did you mean tag?",
    ),
    "client.send": (
        lambda: at_client("send", Message(**MESSAGE), tiemout=3.0),
        "send() has no 'tiemout'; did you mean timeout?",
    ),
    "TLS": (lambda: TLS(**odd(cafile="x")), "TLS has no 'cafile'; there are ca, cert, key,"),
    "Credentials": (
        lambda: Credentials(**odd(acces_key="x", secret_key="y")),
        "did you mean access_key?",
    ),
    "mq.consumer": (
        lambda: shop().consumer("orders", **odd(gruop="g")),
        "consumer() has no 'gruop'; did you mean group?",
    ),
    "mq.topic": (
        lambda: shop().topic("orders", **odd(group="g")),
        "topic() has no 'group'; did you mean groups?",
    ),
    "mq.idempotent": (lambda: shop().idempotent(**odd(kye="x")), "did you mean key?"),
    "tx.send": (lambda: sent("orders", {}, tga="x"), "send has no option tga; did you mean tag?"),
    "tx.send of an object": (
        lambda: sent("orders", object()),
        "a payload is a pydantic model, dataclass, msgspec Struct, dict, list, str or bytes",
    ),
    "tx.send with a number as delay": (lambda: sent("orders", {}, delay=5), "timedelta(seconds=5)"),
    "tx.send of a number": (lambda: sent("orders", 7), "list, str or bytes, not an int"),
    "tx.send of nothing": (lambda: sent("orders", None), "list, str or bytes, not None"),
    "tx.send to a database": (
        lambda: sent("orders", {}, database="billing"),
        "send has no option database: a transaction has one database, mq.transaction(database=…)",
    ),
    "an application without a name": (
        lambda: ReliableMQ(database="sqlite:///x.db"),  # type: ignore[call-arg]
        'ReliableMQ(): name is missing: write mq = ReliableMQ("shop", broker=',
    ),
    "an application with a broker by its place": (
        lambda: ReliableMQ("shop", "localhost:9876"),  # type: ignore[call-arg]
        'ReliableMQ(): options are given by name: write mq = ReliableMQ("shop", broker=',
    ),
    "a broker with http://": (
        lambda: shop(broker="http://localhost:9876/"),
        "is no host:port: leave http:// out, and write localhost:9876",
    ),
    "the broker of another program": (
        lambda: shop(broker="amqp://localhost"),
        "it is the URL of another program; write the name server's, such as h:9876",
    ),
    "a key that is a dict": (
        lambda: sent("orders", {}, key={"a": 1}),
        "a key is a text or a number, not a dict: {'a': 1}",
    ),
    "a commit within a transaction": (
        commits_itself,
        "tx.session.commit() within mq.transaction(): the block commits rows and messages",
    ),
    "an asynchronous commit within a transaction": (
        lambda: asyncio.run(commits_itself_asynchronously()),
        "tx.session.commit() within mq.transaction(): the block commits rows and messages",
    ),
    "a second handler of a group": (
        handled_twice,
        f"has the handler {__name__}.handler already: give {__name__}.other a group of its own",
    ),
    "a consumer without parentheses": (
        lambda: bare("consumer"),
        '@mq.consumer needs parentheses: write @mq.consumer("orders", group=',
    ),
    "an idempotent function without parentheses": (
        lambda: bare("idempotent"),
        "@mq.idempotent needs parentheses: write @mq.idempotent(key=",
    ),
    "a periodic message without parentheses": (
        lambda: bare("periodic"),
        "@mq.periodic needs parentheses: write @mq.periodic(",
    ),
    "no key of an idempotent function": (
        lambda: shop().idempotent(key="request")(once)(request=None),
        "the key is None: give what names the request, such as an order number or its",
    ),
    "an engine as database": (
        lambda: shop(database=create_engine("sqlite://")),
        "it must be a URL, such as 'postgresql+psycopg://user@host/name', not an Engine",
    ),
    "a number as broker": (
        lambda: shop(broker=9876),
        "it must be one text, such as 'host:9876;host:9876', not an int",
    ),
    "a list as broker": (lambda: shop(broker=["h:9876"]), "'host:9876;host:9876', not a list"),
    "a broker without a port": (
        lambda: shop(broker="127.0.0.1"),
        "broker (RELIABLE_MQ_BROKER): name server '127.0.0.1' is no host:port: it has no port; w",
    ),
    "waits that are a text": (
        lambda: shop(retry_waits_seconds="5"),
        "it must be a tuple of seconds, such as (1, 5, 30), not a str",
    ),
    "a wait that is a text": (
        lambda: shop(retry_waits_seconds=("soon",)),
        "it must be a number in a tuple of seconds, such as (1, 5, 30), not a str",
    ),
    "a word that is no choice": (lambda: shop(relay="mine"), "it must be 'own' or 'shared'"),
    "an account without a secret": (
        lambda: shop(access_key="x"),
        "access_key has no secret_key: set secret_key (RELIABLE_MQ_SECRET_KEY), too",
    ),
    "tx.send to an illegal topic": (lambda: sent("a b", {}), "'a b' is not a legal name"),
    "an unknown database": (
        lambda: shop().transaction(database="billing"),
        "there is no database 'billing'; known: main",
    ),
    "a session that is none": (lambda: shop().transaction(THREE), "pass a Session, AsyncSession"),
    "a handler that is none": (
        lambda: shop().consumer("orders", group="g")(THREE),
        "a handler is a def or an async def, not 3",
    ),
    "a schema without a name": (
        lambda: schema(Placed),  # type: ignore[arg-type]
        '@schema needs a name: write @schema("order.placed", version=1)',
    ),
    "tags as a list": (
        lambda: shop().consumer("orders", group="g", **odd(tag=["paid", "placed"]))(handler),
        "tag=['paid', 'placed']: write several tags as one text, 'paid || placed'",
    ),
    "an application that is pickled": (
        lambda: pickle.dumps(shop()),
        "a ReliableMQ cannot be copied or pickled: import it where it is needed",
    ),
    "an application that is copied": (lambda: copy.deepcopy(shop()), "cannot be copied or pickled"),
    "a consumer without a group": (
        lambda: shop().consumer("orders"),  # type: ignore[call-overload]
        'consumer(): group is missing: write @mq.consumer("orders", group="payments")',
    ),
    "a group by its place": (
        lambda: shop().consumer("orders", "payments"),  # type: ignore[call-overload]
        'consumer(): options are given by name: write @mq.consumer("orders", group=',
    ),
    "a handler of two topics": (
        lambda: shop().consumer(odd(t=["orders", "mails"])["t"], group="g")(handler),
        "topic=['orders', 'mails']: a handler has one topic and one group; write one for each",
    ),
    "a handler of two groups": (
        lambda: shop().consumer("orders", **odd(group=("a", "b")))(handler),
        "group=('a', 'b'): a handler has one topic and one group; write one for each",
    ),
    "a periodic message without a topic": (
        lambda: shop().periodic("0 3 * * *"),  # type: ignore[call-arg]
        'periodic(): topic is missing: write @mq.periodic("0 3 * * *", topic="reports")',
    ),
    "a periodic message of a lambda": (
        lambda: shop().periodic("0 3 * * *", topic="reports")(lambda: {"at": 1}),
        "@mq.periodic decorates a lambda: give it a name=, or write a def",
    ),
    "a misspelt option of a periodic message": (
        lambda: shop().periodic("0 3 * * *", topic="reports", **odd(timezone="UTC"))(once),
        "no option timezone; did you mean time_zone?",
    ),
    "groups by their place": (
        lambda: shop().topic("orders", ["payments"]),  # type: ignore[call-overload]
        'topic(): options are given by name: write mq.topic("orders", groups=["payments"])',
    ),
    "a URL before the name": (
        lambda: ReliableMQ("postgresql+psycopg://shop:hunter2@db/shop"),
        "the name of the application comes first, and this is a URL",
    ),
    "an upgrade that is no function": (
        lambda: schema("order.placed", version=2, upgrades=odd(u={1: {}})["u"])(Placed),
        "schema order.placed: upgrades[1]={} is no function: give one that takes the old JSON",
    ),
    "a text as sensitive fields": (
        lambda: shop(sensitive="card_number"),
        "it must be a tuple of names, such as ('card_number', 'customer.email'), not a str",
    ),
    "a prefix of tables with a dash": (
        lambda: shop(table_prefix="shop-"),
        "setting table_prefix: it must be a lower-case letter, then at most 31 of a-z 0-9 _",
    ),
    "Retry with Celery's word": (
        lambda: Retry(**odd(countdown=5)),
        "Retry() has no 'countdown'; did you mean after?",
    ),
    "Reject without a reason": (
        lambda: Reject(**odd()),
        'Reject(): reason is missing: write Reject("the card was refused")',
    ),
    "retries that are asked for": (
        lambda: shop().consumer("orders", group="g", **odd(autoretry_for=(OSError,)))(handler),
        "consumer() has no 'autoretry_for': a handler that raises is called again by itself, see",
    ),
    "a late acknowledgement": (
        lambda: shop().consumer("orders", group="g", **odd(acks_late=True))(handler),
        "has no 'acks_late': a message is acknowledged after the COMMIT of its handler",
    ),
    "a payload before its topic": (
        lambda: sent({"id": 1}, "orders"),
        'the topic comes first, send("orders", {…})',
    ),
    "a key with a space": (
        lambda: sent("orders", {}, key="a b"),
        "'a b' contains a space, which separates keys: replace it, such as 'a-b'",
    ),
    "Retry in the past": (lambda: Retry(after=-3), "it must be within 0..7200 s"),
    "no name server": (lambda: Client("nonsense"), "is no host:port: it has no port"),
    "a broker that is away": (
        lambda: at_client("send", Message(**MESSAGE)),
        "no name server answers (127.0.0.1:1",
    ),
    "a Redis URL": (lambda: shop(redis="localhost"), "is not a Redis URL: it must begin with"),
    "no driver": (
        lambda: without("pymysql", lambda: shop(database="mysql://u@h/x").create_tables()),
        "pymysql is not installed; pip install 'reliable-mq[mysql]'",
    ),
    "no asynchronous driver": (
        lambda: without("aiosqlite", lambda: asyncio.run(asynchronous())),
        "aiosqlite is not installed; pip install 'reliable-mq[sqlite]'",
    ),
    "no Alembic": (
        lambda: without("alembic", lambda: shop().migrate()),
        "alembic is not installed; pip install 'reliable-mq[migrations]'",
    ),
    "no library of metrics": (
        lambda: without(
            "prometheus_client",
            lambda: serve_metrics("127.0.0.1", 1),
        ),
        "pip install 'reliable-mq[prometheus]'",
    ),
}
