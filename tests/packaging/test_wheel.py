"""The wheel as a user gets it: built, installed into a new environment, and used from there."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from tests.reconcile.cases import every_case

from reliable_mq.app.application import ReliableMQ
from reliable_mq.runtime.java_home import use_java

pytestmark = pytest.mark.packaging
ROOT = Path(__file__).parents[2]
SOURCES = ("log", "table", "topic")
PLAIN_SQL = """
import reliable_mq, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
spark.sql(f"CREATE TEMPORARY VIEW log USING reliable_mq_log OPTIONS (path '{sys.argv[1]}')")
spark.sql(
    "CREATE TEMPORARY VIEW stubs USING reliable_mq_table"
    f" OPTIONS (url '{sys.argv[2]}', table 'stub', columns 'message_id')"
)
known = "SELECT count(*) FROM log JOIN stubs USING (message_id) WHERE role = 'first'"
print(reliable_mq.__file__, spark.sql(known).collect()[0][0])
spark.stop()
"""


def run(*command: str, **environment: str) -> str:
    """Run a command that sees nothing of this checkout; return what it printed."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    around = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd="/",
        env=around | environment,
        check=False,
    )
    assert done.returncode in (0, 2), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the wheel, as `python -m build` makes it of this checkout."""
    out = tmp_path_factory.mktemp("dist")
    words = ("--wheel", "--no-isolation", "--outdir", str(out), str(ROOT))
    run(sys.executable, "-m", "build", *words)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a new virtual environment with the wheel; what it depends on is taken from ours."""
    folder = tmp_path_factory.mktemp("user") / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    words = ("install", "--quiet", "--no-deps", "--no-index", str(wheel))
    run(sys.executable, "-m", "pip", "--python", str(python), *words)
    site = run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Give the URL of a database and a store directory."""
    folder = tmp_path_factory.mktemp("ledgers")
    url = f"sqlite:///{folder}/shop.db"
    _, store = every_case(url, folder / "store")
    mq = ReliableMQ("shop", database=url)
    mq.create_tables()
    mq.close()
    return url, store


def test_the_wheel_has_the_package_the_sources_for_spark_and_nothing_else(wheel: Path) -> None:
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}

    sources = {f"pyspark_reliable_mq_{name}.py" for name in SOURCES}
    assert {name for name in names if not name.endswith(".dist-info")} == {"reliable_mq"} | sources


def test_the_wheel_has_the_licence_and_the_mark_of_its_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert "reliable_mq/py.typed" in names


def test_the_sdist_has_what_the_wheel_is_built_from_and_the_files_for_users(
    wheel: Path, tmp_path: Path
) -> None:
    """Given the sdist, then it has no tests, and the wheel built from it is the same."""
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path))
    run(*build, str(ROOT))  # an sdist, and the wheel from it

    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    tops = {name.partition("/")[0] for name in names}
    assert tops == {
        *("src", "deploy", "docs", "examples", "CHANGELOG.md", "LICENSE", "README.md", "PKG-INFO"),
        *("pyproject.toml", ".gitignore"),
    }
    (again,) = tmp_path.glob("*.whl")
    built, rebuilt = (zipfile.ZipFile(path) for path in (wheel, again))
    assert {each.filename: each.CRC for each in built.infolist()} == {
        each.filename: each.CRC for each in rebuilt.infolist()
    }


def test_the_wheel_has_the_demo_and_its_shop_as_they_lie_among_the_examples(wheel: Path) -> None:
    carried = "reliable_mq/cli/bundled/"
    with zipfile.ZipFile(wheel) as archive:
        found = {
            name.removeprefix(carried): archive.read(name).decode()
            for name in archive.namelist()
            if name.startswith(carried)
        }

    folders = (ROOT / "examples" / name for name in ("demo", "shop"))
    files = {path for folder in folders for path in folder.glob("*.py")}
    assert found == {str(path.relative_to(ROOT)): path.read_text() for path in files}


def test_the_demo_is_played_where_the_wheel_is_installed(environment: Path, tmp_path: Path) -> None:
    words = ("demo", "--orders", "50", "--kills", "1", "--seed", "4", "--out", str(tmp_path))

    told = run(str(environment / "bin" / "reliable-mq"), *words)

    assert "every order was paid exactly once, to the cent (50): yes" in told


def test_reconcile_works_where_the_wheel_is_installed(
    environment: Path, ledgers: tuple[str, str], tmp_path: Path
) -> None:
    url, store = ledgers
    command = (str(environment / "bin" / "reliable-mq"), "reconcile", "--json")

    told = run(*command, "--db", url, "--store", store, "--out", str(tmp_path / "out"))

    summary = json.loads(told)
    assert summary["rows"] == sum(summary["verdicts"].values()) > 0
    assert Path(summary["report"]).exists()


def test_spark_finds_the_sources_by_their_names_where_the_wheel_is_installed(
    environment: Path, ledgers: tuple[str, str]
) -> None:
    """Given nothing but an installed wheel, when plain SQL names a source, then Spark has it."""
    url, store = ledgers
    use_java()
    python = str(environment / "bin" / "python")

    told = run(
        *(python, "-c", PLAIN_SQL, store, url), PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python
    )

    place, count = told.split()
    assert Path(place).is_relative_to(environment)
    assert int(count) > 0
