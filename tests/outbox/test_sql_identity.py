"""A database knows who it is, whoever asks first, and messages carry where it reads notices."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import MetaData

from reliable_mq import ReliableMQ
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_identity import SqlIdentity, identity_table
from reliable_mq.errors import ConfigurationError, MessageRefused
from reliable_mq.message import CONFIRM_TO, notice_topic_of
from reliable_mq.outbox.stub import Stub, message_of

TOPIC = "rmq_notices_0123456789abcdef"


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url, prefix="rmq_", connections=8)
    made.create_tables()
    yield made
    made.close()


def test_all_who_ask_at_once_get_one_identity_and_it_stays(database: Database) -> None:
    table = identity_table(MetaData(), "rmq_")

    with ThreadPoolExecutor(8) as pool:
        identities = [SqlIdentity(database.engine, table) for _ in range(16)]
        topics = set(pool.map(lambda each: each.notice_topic(), identities))

    assert topics == {database.identity.notice_topic()}


def test_another_prefix_and_another_database_are_somebody_else(
    database: Database, other_url: str
) -> None:
    url = database.url.render_as_string(hide_password=False)
    others = [
        Database(url, prefix="two_", connections=1),
        Database(other_url, prefix="rmq_", connections=1),
    ]
    for each in others:
        each.create_tables()

    topics = {each.identity.notice_topic() for each in (database, *others)}

    assert len(topics) == 3
    for each in others:
        each.close()


def test_without_its_table_it_says_what_to_do(database_url: str) -> None:
    bare = Database(database_url, prefix="bare_", connections=1)

    with pytest.raises(ConfigurationError, match="bare_identity is missing: call"):
        bare.identity.notice_topic()
    bare.close()


def test_a_message_says_where_its_confirmations_go_when_it_waits_for_any() -> None:
    stub = Stub(seq=1, message_id="A" * 32, topic="t", content=b"x", required_groups=("b", "a"))
    nobodys = Stub(seq=1, message_id="A" * 32, topic="t", content=b"x")

    properties = message_of(stub, confirm_to=TOPIC).properties

    assert properties[CONFIRM_TO] == f"{TOPIC}:a,b"
    assert notice_topic_of(properties, "a") == TOPIC
    assert notice_topic_of(properties, "c") == ""
    assert CONFIRM_TO not in message_of(nobodys, confirm_to=TOPIC).properties
    assert CONFIRM_TO not in message_of(stub).properties


@pytest.mark.parametrize(
    "value",
    ["", ":a", f"{TOPIC}", f"{TOPIC}:", "orders:a", f"{TOPIC}0:a", f" {TOPIC}:a", f"{TOPIC}\n:a"],
)
def test_an_address_that_is_none_of_ours_is_none(value: str) -> None:
    assert notice_topic_of({CONFIRM_TO: value}, "a") == ""


def test_more_groups_than_a_message_can_name_are_refused_where_they_are_written(
    database_url: str,
) -> None:
    """Or the stub would be committed, and no send of it could ever succeed."""
    mq = ReliableMQ("shop", broker="127.0.0.1:9", database=database_url)
    mq.create_tables()
    groups = tuple(f"{number:0120d}" for number in range(280))

    with pytest.raises(MessageRefused, match="properties of"), mq.transaction() as tx:
        tx.send("orders", {}, required_groups=groups)
    mq.close()
