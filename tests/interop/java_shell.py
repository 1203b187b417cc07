"""Programs of one file in `tests/interop/java`, run over Apache's client by Java itself."""

import subprocess
from pathlib import Path

from bench.java_programs import CLIENT_JARS, build_client, java_command

SOURCES = Path(__file__).parent / "java"
PROGRAM_SECONDS_MAX = 400


def run_source(name: str, home: Path, *words: object) -> list[str]:
    """Run `name`.java with these arguments to its end, and return what it printed, by line."""
    build_client()
    command = java_command(
        str(SOURCES / f"{name}.java"),
        class_path=f"{CLIENT_JARS}/*",
        home=home,
        flags=("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    )
    reply = subprocess.run(
        [*command, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS_MAX,
        check=False,
    )
    assert reply.returncode == 0, reply.stderr[-3000:]
    return reply.stdout.splitlines()
