"""An account that lacks rights in the tables is told each of them, with the GRANT."""

from contextlib import closing

import pymysql
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import ProgrammingError
from tests.doctor.worlds import World
from tests.local_mysql import LocalMySQL

from reliable_mq import ReliableMQ
from reliable_mq.doctor.finding import Level

RIGHTS = {
    "reader": (
        ("SELECT ON ALL TABLES IN SCHEMA public",),
        ("INSERT, UPDATE, DELETE on rmq_", "USAGE on public.rmq_audit_seq_seq, "),
    ),
    "without_ends": (
        (
            "SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public",
            "USAGE ON ALL SEQUENCES IN SCHEMA public",
        ),
        ("DELETE on rmq_",),
    ),
    "without_sequences": (
        ("SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public",),
        ("USAGE on public.rmq_audit_seq_seq, ",),
    ),
}
"""Roles that lack rights: what they are granted, and how what they lack is told."""


@pytest.mark.parametrize("role", RIGHTS)
def test_a_role_is_told_each_right_that_it_lacks_and_the_grants_are_enough(
    postgres_url: str, role: str
) -> None:
    granted, says = RIGHTS[role]
    with closing(World(postgres_url)) as world:
        world.sql(f"CREATE ROLE {role} LOGIN", *(f"GRANT {each} TO {role}" for each in granted))
        try:
            url = postgres_url.replace("//postgres:", f"//{role}:")
            with closing(World(url, makes_tables=False)) as seen:
                told = seen.findings("writes")
                world.sql(*(each.remedy for each in told))
                (mended,) = seen.findings("writes")
                seen.stub()
        finally:
            world.sql(f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    assert {each.level for each in told} == {Level.ERROR}
    for said in says:
        assert any(f"it lacks {said}" in each.text for each in told), told
    assert mended.level is Level.OK


def test_an_account_of_mysql_is_told_each_right_that_it_lacks(
    mysql_url: str, mysql_server: LocalMySQL
) -> None:
    place = {"host": "127.0.0.1", "port": mysql_server.port, "user": "root"}
    owned = make_url(mysql_url).set(database="rights")  # MariaDB lets all into `test_%`
    url = owned.set(username="runtime").render_as_string(hide_password=False)
    with pymysql.connect(**place) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE DATABASE rights")
        cursor.execute("CREATE USER runtime@localhost")
        cursor.execute("GRANT SELECT, INSERT, UPDATE ON rights.* TO runtime@localhost")
        try:
            World(owned.render_as_string(hide_password=False)).close()
            with closing(World(url, makes_tables=False)) as seen:
                (told,) = seen.findings("writes")
                cursor.execute(told.remedy)
                seen.renew()
                (mended,) = seen.findings("writes")
        finally:
            cursor.execute("DROP USER runtime@localhost")
            cursor.execute("DROP DATABASE rights")

    assert told.level is Level.ERROR
    assert "it lacks DELETE on rmq_" in told.text
    assert mended.level is Level.OK


def test_a_send_that_lacks_a_right_names_the_command_that_prints_it(postgres_url: str) -> None:
    with closing(World(postgres_url)) as world:
        world.sql("CREATE ROLE visitor LOGIN")
        url = postgres_url.replace("//postgres:", "//visitor:")
        try:
            with (
                closing(ReliableMQ("visitors", database=url)) as mq,
                pytest.raises(ProgrammingError) as refused,
                mq.transaction() as tx,
            ):
                tx.send("orders", {"id": 1})
        finally:
            world.sql("DROP ROLE visitor")

    assert refused.value.__notes__ == [
        "reliable-mq doctor prints the GRANT that this account lacks"
    ]
