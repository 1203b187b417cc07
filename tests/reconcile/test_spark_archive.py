"""Which archive of Spark's classes the tests use: `tests/spark_archive.py` writes it."""

from pathlib import Path

import pytest
from tests import spark_archive


@pytest.mark.parametrize(("content", "is_used"), [(None, False), (b"", False), (b"one", True)])
def test_only_an_archive_that_java_could_write_is_used(
    content: bytes | None, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "spark.jsa"
    environment: dict[str, str] = {}
    monkeypatch.setattr(spark_archive, "ARCHIVE", archive)
    if content is not None:
        archive.write_bytes(content)

    spark_archive.use(environment)

    assert (str(archive) in environment.get("SPARK_SUBMIT_OPTS", "")) == is_used


def test_options_that_somebody_has_set_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, environment = tmp_path / "spark.jsa", {"SPARK_SUBMIT_OPTS": "-Xint"}
    monkeypatch.setattr(spark_archive, "ARCHIVE", archive)
    archive.write_bytes(b"one")

    spark_archive.use(environment)

    assert environment == {"SPARK_SUBMIT_OPTS": "-Xint"}
