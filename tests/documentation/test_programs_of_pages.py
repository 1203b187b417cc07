"""The programs of pages run in the shop of the tutorial; frameworks: `tests/contrib`."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.forked_programs import Programs

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.processes

_SET_UP = """
from shop.messaging import mq
from shop.models import Table
mq.create_tables()
Table.metadata.create_all(mq.database.engine)
"""
_LOOK = """
from sqlalchemy import select
with mq.database.engine.connect() as connection:
    stub = mq.database.stubs.c
    print(connection.execute(select(stub.topic, stub.message_key, stub.content)).all())
"""


_CONSUMER = """
from sqlalchemy import select
from tests.waiting import until
with mq:
    with mq.transaction() as tx:
        for number, amount in ((1, 10), (2, 2000), (3, -1)):
            tx.send("orders", {"id": number, "amount": amount}, tag="placed")
    logs = mq.database.escalations.c
    def found(column):
        with mq.database.engine.connect() as connection:
            return sorted(connection.scalars(select(column)))
    until(lambda: len(found(Payment.order_id)) == 2 and found(logs.reason))
print(found(Payment.order_id), found(logs.reason))
"""
_BANK = """
import httpx
from tests.waiting import until
requests = []
def answer(request):
    requests.append(request.headers["Idempotency-Key"])
    if len(requests) == 1:
        raise httpx.ConnectError("away")
    return httpx.Response(201 if len(requests) > 2 else 500)
bank = httpx.Client(base_url="https://bank.example", transport=httpx.MockTransport(answer))
Retry = lambda **more: RealRetry(0.1, **more)
with mq:
    with mq.transaction() as tx:
        tx.send("orders", OrderPlaced(order_id=7, item="tea"))
    def paid():
        with Session(mq.database.engine) as session:
            return session.query(Payment).count()
    until(paid)
print(requests, paid())
"""
_ORDER = """
from shop.models import Order
from sqlalchemy.orm import Session
engine, order = mq.database.engine, Order(item="tea")
"""
_SESSIONS = """
from sqlalchemy import func, select
with engine.connect() as connection:
    print(*(connection.scalar(select(func.count()).select_from(each))
            for each in (Order.__table__, mq.database.stubs)))
"""
_MAILS = """
from types import SimpleNamespace
from reliable_mq.testing.message_world import MessageWorld
MOST = 3
def mails():
    with Session(mq.database.engine) as session:
        return [(each.customer, each.mails) for each in session.query(MailCount)]
Table.metadata.create_all(mq.database.engine)
with MessageWorld(mq) as world:
    world.clock.advance(60 - world.clock.now() % 60)  # a window begins
    time = SimpleNamespace(time=world.clock.now)
    with mq.transaction() as tx:
        for customer in (17, 17, 17, 17, 18):
            tx.send("mails", {"customer": customer}, ordering_key=customer)
    world.deliver()
    print(mails(), len(world.sent("mails")))
    world.advance(seconds=30)
    print(mails())
    world.advance(seconds=30)
    print(mails())
    world.settle()
    print(world.dead_letters("mailing"))
"""
_HOOKS = """
from fastapi.testclient import TestClient
from reliable_mq.testing.message_world import MessageWorld
posts = []
def answer(request):
    wanted = hmac.new(SECRET, request.content, hashlib.sha256).hexdigest()
    posts.append((request.headers["X-Event-Id"], request.headers["X-Signature"] == wanted))
    return httpx.Response(500 if len(posts) == 1 else 200)
partner = httpx.Client(base_url="https://partner.example", transport=httpx.MockTransport(answer))
client = TestClient(app)
def signed(body, key=SECRET):
    return hmac.new(key, body, hashlib.sha256).hexdigest()
def post(body, signature):
    headers = {"X-Signature": signature.encode()}
    return client.post("/webhooks/bank", content=body, headers=headers).status_code
with MessageWorld(mq) as world:
    body = b'{"id": "e-1",  "paid": 7}'
    print(*(post(body, signed(body, key)) for key in (SECRET, SECRET, b"other")), post(body, "é"))
    other = b'{"id": "e-2"}'
    print(post(other, signed(other)), [each.keys for each in world.sent("bank_events")])
    with mq.transaction() as tx:
        sent = tx.send("partner_events", {"order": 7})
    world.settle()
    print(posts == [(sent, True)] * 2)
"""
_EVENTS = """
from sqlalchemy import insert
from sqlalchemy.orm import Session
with Session(mq.database.engine) as session, session.begin():
    session.add_all([Order(item="tea"), Order(item="milk")])
    session.execute(insert(Order), [{"item": "bulk"}])
with Session(mq.database.engine) as session:
    session.add(Order(item="gone"))
    session.flush()
async def place():
    async with mq.transaction() as tx:
        tx.session.add(Order(item="later"))
import asyncio
asyncio.run(place())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples" / "tutorial" / "web", tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs(
        *("httpx", "sqlalchemy.dialects.sqlite", "sqlalchemy.orm"),
        *("reliable_mq.app.application", "reliable_mq.runtime.broker_server"),
    ) as made:
        yield made


Run = Callable[..., str]


@pytest.fixture
def run(programs: Programs, project: Path) -> Run:
    """Run the first program of a page or below a heading, or the first two, between other parts.

    Returns what it printed.
    """

    def printed(
        page: str,
        *parts: str,
        before: str = "",
        second: bool = False,
        under: str = "",
        **more: str,
    ) -> str:
        program = program_of(page, parts, before, second=second, under=under)
        environment = {**os.environ, "RELIABLE_MQ_DATABASE": "sqlite:///shop.db", **more}
        environment["PYTHONPATH"] = str(ROOT)
        done = programs.run(["-c", program], cwd=project, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return printed


def program_of(
    page: str, parts: Sequence[str], before: str, *, second: bool = False, under: str = ""
) -> str:
    text = (ROOT / "docs" / "how-to" / page).read_text()
    if under:
        text = text.partition(f"## {under}\n")[2]
    shown = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[: 2 if second else 1]
    return "\n".join((_SET_UP, *(f"{before}\n{each}" for each in shown), *parts))


def test_the_consumer_of_the_page_takes_a_payment_rejects_and_tries_again(run: Run) -> None:
    said = run("consumers.md", _CONSUMER, RELIABLE_MQ_BROKER="embedded:b")

    assert said == "[1, 2] ['the amount -1 cannot be paid']\n"


def test_the_sessions_of_the_page_commit_rows_and_messages(run: Run) -> None:
    said = run(
        "own_session.md",
        _SESSIONS,
        before=_ORDER,
        second=True,
        RELIABLE_MQ_BROKER="embedded:b",
    )

    assert said == "2 2\n"


def test_the_second_request_of_the_page_gets_the_answer_of_the_first(run: Run) -> None:
    said = run("idempotent_requests.md", _LOOK, RELIABLE_MQ_BROKER="embedded:b")

    assert said == "True\n[('orders', '1', b'{\"id\":1}')]\n"


def test_the_call_of_the_page_has_one_key_in_all_attempts(run: Run) -> None:
    said = run(
        "external_calls.md",
        _BANK,
        before="from reliable_mq import Retry as RealRetry",
        RELIABLE_MQ_BROKER="embedded:b",
        RELIABLE_MQ_RETRY_WAITS_SECONDS="[0.1]",
    )

    assert said == "['order-7', 'order-7', 'order-7'] 1\n"


def test_the_event_of_the_page_announces_each_row_and_none_that_is_rolled_back(run: Run) -> None:
    said = run("own_session.md", _EVENTS, _LOOK, under="From an event of the ORM")

    assert re.findall(r"'(\d)'", said) == ["1", "2", "4"]


def test_the_count_of_the_page_lets_each_customer_have_so_many_mails_in_a_window(run: Run) -> None:
    said = run("rate_limits.md", _MAILS).splitlines()

    assert said == ["[(17, 3), (18, 1)] 5", "[(17, 3), (18, 1)]", "[(17, 1), (18, 1)]", "[]"]


def test_the_webhooks_of_the_page_are_verified_kept_once_and_delivered_again(run: Run) -> None:
    said = run("webhooks.md", _HOOKS, second=True, WEBHOOK_SECRET="s3cret")

    assert said.splitlines() == ["204 204 401 401", "204 [('e-1',), ('e-2',)]", "True"]
