"""Programs of one file in `tests/interop/java`, run over Apache's jars by Java itself."""

import subprocess
from pathlib import Path

from bench.java_programs import CLIENT_JARS, SERVER_JARS, build_client, build_server, java_command
from tests.with_java import skipped_without_java

SOURCES = Path(__file__).parent / "java"
PROGRAM_SECONDS_MAX = 400


def source_command(name: str, home: Path, *words: object, jars: Path = CLIENT_JARS) -> list[str]:
    """Return the command that runs `name`.java with these arguments; its jars are there then.

    Skips the test where they cannot be fetched.
    """
    with skipped_without_java():
        (build_server if jars == SERVER_JARS else build_client)()
    command = java_command(
        str(SOURCES / f"{name}.java"),
        class_path=f"{jars}/*",
        home=home,
        flags=("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    )
    return [*command, *map(str, words)]


def run_source(name: str, home: Path, *words: object, jars: Path = CLIENT_JARS) -> list[str]:
    """Run `name`.java with these arguments to its end, and return what it printed, by line."""
    reply = subprocess.run(
        source_command(name, home, *words, jars=jars),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS_MAX,
        check=False,
    )
    assert reply.returncode == 0, reply.stdout[-3000:] + reply.stderr[-3000:]
    return reply.stdout.splitlines()
