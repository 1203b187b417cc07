"""The project of the tutorial: its own tests pass, its migrations do what the page says."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.forked_programs import Programs

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
pytestmark = pytest.mark.processes


@pytest.fixture
def project(tmp_path: Path) -> Path:
    source = ROOT / "examples" / "tutorial" / "web"
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs(
        *("alembic.command", "alembic.config", "sqlalchemy.dialects.sqlite"),
        *("reliable_mq.app.application", "reliable_mq.cli.main"),
    ) as made:
        yield made


Run = Callable[..., str]


@pytest.fixture
def run(programs: Programs, project: Path) -> Run:
    """Run a module of Python in the project; return what it printed."""

    def printed(*words: str) -> str:
        environment = {**os.environ, "RELIABLE_MQ_DATABASE": "sqlite:///shop.db"}
        done = programs.run(["-m", *words], cwd=project, env=environment, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return printed


def test_the_tests_of_the_project_pass(run: Run) -> None:
    assert re.search(r"\b4 passed", run("pytest", "-q", "-p", "no:cacheprovider"))


def test_one_command_migrates_both_and_autogenerate_finds_nothing_to_drop(run: Run) -> None:
    run("alembic", "upgrade", "head")

    assert "No new upgrade operations detected" in run("alembic", "check")
    assert "nothing to do" in run("reliable_mq.cli.main", "migrate", "shop.messaging:mq")


def test_offline_mode_prints_and_changes_nothing(project: Path, run: Run) -> None:
    assert "CREATE TABLE orders" in run("alembic", "upgrade", "head", "--sql")
    assert b"CREATE TABLE" not in (project / "shop.db").read_bytes()


def test_without_the_filter_autogenerate_would_drop_our_tables(project: Path, run: Run) -> None:
    run("alembic", "upgrade", "head")
    environment = project / "migrations" / "env.py"
    environment.write_text(environment.read_text().replace("include_name=is_ours,", ""))

    with pytest.raises(AssertionError, match="rmq_message_stub"):
        run("alembic", "check")


def test_the_parts_that_the_page_of_tests_prints_are_a_file_that_passes(
    project: Path, run: Run
) -> None:
    page = ROOT / "docs" / "tutorial" / "tests.md"
    names = re.findall(r"test_shop\.py:(\w+)", page.read_text())
    whole = (project / "test_shop.py").read_text()
    parts = [
        whole.partition(f"# --8<-- [start:{each}]\n")[2].partition(f"# --8<-- [end:{each}]")[0]
        for each in names
    ]
    (project / "test_shop.py").write_text("".join(parts))

    assert re.search(r"\b3 passed", run("pytest", "-q", "-p", "no:cacheprovider"))


def test_alembic_can_write_the_next_migration_of_a_project_that_follows_the_page(
    project: Path, run: Run
) -> None:
    kept = project / "kept"
    (project / "migrations").rename(kept)
    (project / "alembic.ini").rename(kept / "alembic.ini")
    run("alembic", "init", "migrations")
    shutil.copy(kept / "alembic.ini", project)
    shutil.copy(kept / "env.py", project / "migrations")
    shutil.copy(kept / "versions" / "0001_orders.py", project / "migrations" / "versions")
    run("alembic", "upgrade", "head")

    run("alembic", "revision", "--autogenerate", "-m", "nothing new")

    (written,) = (project / "migrations" / "versions").glob("*nothing_new.py")
    assert "op." not in written.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_includes_is_there(page: Path) -> None:
    shown = re.findall(r"^--8<--\n(.+)\n--8<--$", page.read_text(), re.MULTILINE)

    assert page.read_text().count("--8<--") == 2 * len(shown)
    for each in shown:
        path, _, part = each.partition(":")
        text = (ROOT / path).read_text()
        assert not part or f"# --8<-- [start:{part}]" in text
