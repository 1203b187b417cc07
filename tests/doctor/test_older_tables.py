"""Before `reliable-mq migrate`, what lacks a column leads to it, and to no command that refuses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.console.conftest import visitor
from tests.doctor.worlds import EVERY, MYSQL, POSTGRES, SQLITE, World

from reliable_mq.cli.main import run
from reliable_mq.console import console_app
from reliable_mq.database.sql_schema import REVISION, version_table
from reliable_mq.doctor.finding import Finding, Level
from reliable_mq.errors import ConfigurationError

MIGRATE = "run reliable-mq migrate --app MODULE:OBJECT"
OLDER = "the tables rmq_… are of revision 0007"
FIXTURES = {SQLITE: "", POSTGRES: "postgres_url", MYSQL: "mysql_url"}


def bring_back(world: World) -> None:
    """Make the tables those of revision 0007, without the column of correlation ids."""
    if world.dialect == SQLITE:  # it drops no column that an index names
        world.sql("DROP INDEX rmq_message_stub_correlation")
    world.sql("ALTER TABLE rmq_message_stub DROP COLUMN correlation_id")
    with world.database.engine.begin() as connection:
        connection.execute(version_table("rmq_").update().values(version_num="0007"))


@pytest.fixture(params=EVERY)
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if fixture := FIXTURES[request.param]:
        url = request.getfixturevalue(fixture)
    world = World(url)
    bring_back(world)
    yield world
    world.close()


def without_ok(findings: list[Finding]) -> list[Finding]:
    return [each for each in findings if each.level is not Level.OK]


def test_the_doctor_says_it_once_and_names_the_command_that_does_it(older: World) -> None:
    wrong = f"{OLDER}, this release needs {REVISION}"
    assert older.findings("tables") == [Finding("tables", Level.ERROR, wrong, MIGRATE)]
    (index,) = without_ok(older.findings("indexes"))
    assert "has no index rmq_message_stub_correlation" in index.text
    assert index.remedy == MIGRATE
    with pytest.raises(ConfigurationError, match=OLDER):
        older.mq.create_tables()  # so it is no remedy


def test_the_account_is_not_blamed_for_a_column_that_is_missing(older: World) -> None:
    (found,) = older.findings("writes")
    assert found.level is Level.SKIPPED
    assert "could not look: " in found.text
    assert "correlation_id" in found.text


@pytest.mark.parametrize(
    "words", [("stub", "show", "x"), ("stub", "list", "--correlation-id", "x")]
)
def test_a_command_that_needs_the_column_names_the_migration(
    older: World, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    url = older.database.url.render_as_string(hide_password=False)
    with pytest.raises(SystemExit):
        run((*words, "--db", url))
    said = capfd.readouterr().err
    assert said.startswith(
        f"error: {OLDER}, this release needs {REVISION}: run reliable-mq migrate"
    )
    assert said.count("\n") == 1


def test_a_page_of_the_console_names_the_migration(older: World) -> None:
    with visitor(console_app(older.mq)) as client:
        page = client.get("/find?q=nobody").text
    assert "if its tables are of an older release, run reliable-mq migrate" in page


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        ("DROP TABLE rmq_audit", "run reliable-mq create-tables --app MODULE:OBJECT"),
        ("ALTER TABLE rmq_message_stub DROP COLUMN note", "restore the column"),
    ],
)
def test_what_tables_of_this_revision_lack_is_not_for_a_migration(
    tmp_path: Path, fault: str, remedy: str
) -> None:
    world = World(f"sqlite:///{tmp_path / 'shop.db'}")
    world.sql(fault)
    (found,) = world.findings("tables")
    assert found.remedy == remedy
    if "create-tables" in remedy:
        world.mq.create_tables()
        assert [each.level for each in world.findings("tables")] == [Level.OK]
    world.close()
