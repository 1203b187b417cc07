"""The URL of a database is read whole, or refused: nothing connects elsewhere."""

from typing import Any

import pytest
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.exc import ArgumentError

from reliable_mq.database.sql_places import whole_url
from reliable_mq.database.sql_urls import checked_url
from reliable_mq.errors import ConfigurationError
from reliable_mq.host_and_port import NotAPlace
from reliable_mq.reconcile.databases.sql_connection import sync_url

POSTGRES = "postgresql+psycopg://u:s3cret@"


@pytest.mark.parametrize(
    ("rest", "host", "port"),
    [
        ("a/n", "a", None),
        ("a:5/n?sslmode=require", "a", 5),
        ("[::1]/n", "::1", None),
        ("[2001:db8::7]:5/n", "2001:db8::7", 5),
        (":5/n", None, 5),
        ("/n", None, None),
        ("a,b/n", "a,b", None),
        ("a,b:5/n", "a,b", 5),
    ],
)
def test_the_hosts_of_a_url_may_be_one_of_any_kind_or_names_with_one_port(
    rest: str, host: str | None, port: int | None
) -> None:
    url = whole_url(f"{POSTGRES}{rest}")

    assert (url.host, url.port, url.database, url.password) == (host, port, "n", "s3cret")


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        *(
            (f"{hosts}/n", "a host is a name")
            for hosts in ("[::1]x:5", "x[::1]:5", "[::1]5", "[x]")
        ),
        *((f"{hosts}/n", "a host is a name") for hosts in ("a b", "a,,b", "a,", "[::1", "u@h")),
        *((f"{hosts}/n", "a port is a number") for hosts in ("a:x", "a:70000", "a:0", "a:")),
        *((f"{hosts}/n", r"\?host=a,::1&port=") for hosts in ("[::1],a", "a,[::1]", "a:1,b:2")),
        ("a:1,[::1]:2/n", r"\?host=a,::1&port="),
        *(
            (f"/n?{query}", r"\?host=a,::1&port=")
            for query in (
                *("host=a:1&host=[::1]:2", "host=a:1&host=::1", "host=2001:80::7&host=b:1"),
                *("host=[::1]", "host=[::1]:5", "host=a:1,b:2", "host=a_b:5", "host=a%20b"),
                *("host=a,b&port=5", "host=a&port=1,2", "port=1,2", "port=x", "port=70000"),
                *("host=a&host=b&port=1&port=2", "host=,b&port=1,2", "host=a:1:2&host=b:1"),
            )
        ),
    ],
)
def test_hosts_that_sqlalchemy_misreads_are_refused_and_told_how_they_are_written(
    rest: str, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        checked_url(f"{POSTGRES}{rest}")
    with pytest.raises(ConfigurationError, match=says) as refused_too:
        sync_url(f"{POSTGRES}{rest}")
    assert "s3cret" not in f"{refused.value} {refused_too.value}"


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
@pytest.mark.parametrize(
    "rest", ["u:x@s3cret/y@h/n", "u:x@s3cret?y@h/n", "u:x@s3cret:5/y@h/n", "team/u:s3cret@h/n"]
)
def test_a_login_that_is_not_encoded_is_refused_and_not_shown(driver: str, rest: str) -> None:
    for read in (checked_url, sync_url):
        with pytest.raises(ConfigurationError, match="%40") as refused:
            read(f"{driver}://{rest}")
        assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("query", "hosts", "ports"),
    [
        ("host=a,::1&port=1,2", ["a", "::1"], [1, 2]),
        ("host=a:1&host=b:2", ["a", "b"], [1, 2]),
        ("host=a,b&port=1&port=2", ["a", "b"], [1, 2]),
        ("host=::1&port=5", ["::1"], [5]),
        ("host=a:5", ["a"], [5]),
    ],
)
def test_each_driver_reads_the_hosts_and_ports_of_a_query_alike(
    query: str, hosts: list[str], ports: list[int]
) -> None:
    url = whole_url(f"postgresql://u@/n?{query}")

    drivers: list[Any] = [PGDialect_psycopg, PGDialect_psycopg2, PGDialect_asyncpg]
    *like_libpq, asyncpg = (each() for each in drivers)
    for dialect in like_libpq:
        _, read = dialect.create_connect_args(url)
        assert (read["host"], str(read["port"])) == (",".join(hosts), ",".join(map(str, ports)))
    _, read = asyncpg.create_connect_args(url)
    several = len(hosts) > 1
    assert (read["host"], read["port"]) == ((hosts, ports) if several else (hosts[0], ports[0]))


@pytest.mark.parametrize(
    "query",
    ["host=/run/pg", "host=@pg", "x=1&host=@pg", "host=/cloud/project:region:db", "port=5", "x=1"],
)
def test_a_socket_a_port_and_other_options_may_stand_in_the_query(query: str) -> None:
    assert whole_url(f"postgresql+psycopg://u@/n?{query}").database == "n"


def test_a_database_of_mysql_has_one_host() -> None:
    assert whole_url("mysql+pymysql://u@[::1]:5/n").host == "::1"
    with pytest.raises(NotAPlace, match="this database takes one host"):
        whole_url("mysql+pymysql://u@a,b/n")


@pytest.mark.parametrize("url", ["sqlite:///file.db", "sqlite:////a/b@c,d:e.db", "sqlite:///C:\\a"])
def test_a_file_has_no_host_whatever_its_name_is(url: str) -> None:
    assert whole_url(url).host is None


@pytest.mark.parametrize(
    "url", ["nonsense", "s3cret", "", "postgresql:/u:s3cret@h", "x://h/n?a=\nb"]
)
def test_what_sqlalchemy_would_read_in_part_or_not_at_all_is_refused(url: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        whole_url(url)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["mysql://u:s3cret@h", "postgresql:/u:s3cret@h", "mysql://u:1@s3cret@h/n"]
)
def test_no_refusal_of_a_database_shows_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        checked_url(url)
    assert "s3cret" not in str(refused.value)
