"""Which Java Spark gets, in a made-up environment."""

import subprocess
from pathlib import Path

import pytest

from reliable_mq.runtime.java_home import installed_java, use_java

JAVA = '#!/bin/sh\nfor word; do echo "$word"; done\n'


def make_java(home: Path, version: str | None) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(JAVA)
    java.chmod(0o755)
    if version:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [("17.0.15", True), ("25", True), (None, True), ("11.0.2", False), ("1.8.0_402", False)],
)
def test_a_java_is_taken_when_it_is_new_enough_or_does_not_say(
    tmp_path: Path, version: str | None, is_taken: bool
) -> None:
    home = make_java(tmp_path / "java", version)

    assert installed_java({"PATH": f"{home}/bin"}) == (home if is_taken else None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    wanted, other = (make_java(tmp_path / name, "21") for name in ("wanted", "other"))

    assert installed_java({"JAVA_HOME": str(wanted), "PATH": f"{other}/bin"}) == wanted


def test_a_java_home_without_java_is_passed_over(tmp_path: Path) -> None:
    other = make_java(tmp_path / "other", "21")

    assert installed_java({"JAVA_HOME": str(tmp_path), "PATH": f"{other}/bin"}) == other


def test_spark_gets_the_same_java_less_the_module_that_is_not_everywhere(tmp_path: Path) -> None:
    """Given arguments with spaces and the module, then only the module is dropped."""
    home = make_java(tmp_path / "with space", "21")
    environment = {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    java = use_java(environment) / "bin" / "java"

    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "$x"]
    said = subprocess.run([java, *words], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["-cp", "a b", "Main", "$x"]
    assert use_java(environment) / "bin" / "java" == java, "a wrapper is not wrapped again"


def test_without_any_java_the_wheels_is_used(tmp_path: Path) -> None:
    home = use_java({"PATH": str(tmp_path), "HOME": str(tmp_path)})

    said = subprocess.run(
        [home / "bin" / "java", "-version"], capture_output=True, text=True, check=True
    )
    assert home.is_relative_to(tmp_path / ".cache")
    assert "version" in said.stderr


def test_where_no_cache_can_be_written_a_temporary_folder_does(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    java = make_java(tmp_path / "java", "21")

    home = use_java({"JAVA_HOME": str(java), "XDG_CACHE_HOME": str(tmp_path / "file")})

    assert (home / "bin" / "java").exists()
