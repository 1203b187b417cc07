"""Apache's official Java client as load: builds the programs of bench/java and runs them.

The programs print one JSON object a line and write position files (`positions.py`). Logs and
`user.home` of every JVM go to the directory of the run.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.child_process import ChildError, LoggedProcess, WarmChild, json_object
from bench.positions import read_positions

JAVA_DIRECTORY = Path(__file__).parent / "java"
CLIENT_CLASSES = JAVA_DIRECTORY / "target" / "classes"
CLIENT_JARS = JAVA_DIRECTORY / "target" / "lib"
SERVER_JARS = JAVA_DIRECTORY / "target" / "server"
PROXY_JARS = JAVA_DIRECTORY / "target" / "proxy"
SDK_JARS = JAVA_DIRECTORY / "target" / "sdk"
S3A_JARS = JAVA_DIRECTORY / "target" / "s3a"
PACKAGE = "io.github.reliablemq.bench"
BUILD_SECONDS = 900
LOAD_FLAGS = ("-Xms512m", "-Xmx1g", "-XX:+UseParallelGC")
SHORT_FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For programs whose speed is not asked: Java compiles quickly instead of well."""


class JarsUnreachable(ChildError):
    """Maven could not fetch what is built upon: no fault of the programs."""


def missing_tools() -> str | None:
    """What keeps the Java programs from running, as one sentence, or None."""
    absent = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def build_client() -> None:
    """Compile the programs and fetch Apache's client, unless done and no source is newer."""
    sources = [JAVA_DIRECTORY / "pom.xml", *JAVA_DIRECTORY.glob("src/main/java/**/*.java")]
    _build(JAVA_DIRECTORY, CLIENT_JARS.parent / "client.built", sources)


def build_server() -> None:
    """Fetch Apache's name server, broker and tools, unless that is done."""
    project = JAVA_DIRECTORY / "server"
    _build(project, SERVER_JARS.parent / "server.built", [project / "pom.xml"])


def build_proxy() -> None:
    """Fetch Apache's gRPC proxy, unless that is done."""
    project = JAVA_DIRECTORY / "proxy"
    _build(project, PROXY_JARS.parent / "proxy.built", [project / "pom.xml"])


def build_sdk() -> None:
    """Fetch Apache's client of version 5, which speaks gRPC, unless that is done."""
    project = JAVA_DIRECTORY / "sdk"
    _build(project, SDK_JARS.parent / "sdk.built", [project / "pom.xml"])


def build_s3a() -> Path:
    """Fetch Hadoop's connector for object stores, unless that is done; return its jars' folder."""
    project = JAVA_DIRECTORY / "s3a"
    _build(project, S3A_JARS.parent / "s3a.built", [project / "pom.xml"])
    return S3A_JARS


def _build(project: Path, stamp: Path, sources: list[Path]) -> None:
    if stamp.exists() and stamp.stat().st_mtime >= max(file.stat().st_mtime for file in sources):
        return
    reply = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(project / "pom.xml"), "package"],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if reply.returncode:
        offline = re.search(r"Could not (resolve|transfer|find)|Unknown host", reply.stdout)
        failure = JarsUnreachable if offline else ChildError
        raise failure(f"mvn in {project} failed:\n{reply.stdout[-2000:]}{reply.stderr}")
    stamp.touch()


def java_command(
    main_class: str, *, class_path: str, home: Path, flags: tuple[str, ...] = ()
) -> list[str]:
    """The command of one JVM that writes nothing outside `home`."""
    places = (f"-Duser.home={home}", f"-Djava.io.tmpdir={home}")
    return ["java", *flags, *places, "-cp", class_path, main_class]


def _program(
    name: str,
    directory: Path,
    options: Mapping[str, object],
    flags: tuple[str, ...] = LOAD_FLAGS,
) -> list[str]:
    build_client()
    command = java_command(
        f"{PACKAGE}.{name}",
        class_path=f"{CLIENT_CLASSES}:{CLIENT_JARS}/*",
        home=directory,
        flags=flags,
    )
    return command + [word for key, value in options.items() for word in (f"--{key}", str(value))]


def run_program(
    name: str,
    directory: Path,
    *,
    timeout: float,
    flags: tuple[str, ...] = LOAD_FLAGS,
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
    **options: object,
) -> dict[str, Any]:
    """Run `Sender`, `PushConsumer` or `PullReader` to its end and return its JSON line.

    Args:
        directory: where its log goes.
        timeout: seconds, then it is killed and ChildError raised, which tells how far it came.
        flags: of its JVM.
        run: takes the arguments of `subprocess.run`, and may count the seconds in another way.
        options: the program's options without their dashes.
    """
    log = directory / f"{name}.stderr"
    with log.open("w") as errors:
        try:
            reply = run(
                _program(name, directory, options, flags),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise ChildError(
                f"{name}: no end within {timeout:g} s; {_progress(options)}; "
                f"its log ends:\n{log.read_text()[-2000:]}"
            ) from late
    if reply.returncode or not reply.stdout.strip():
        raise ChildError(f"{name}: exit code {reply.returncode}:\n{log.read_text()[-2000:]}")
    return json_object(reply.stdout.strip().splitlines()[-1])


def _progress(options: Mapping[str, object]) -> str:
    """Return how many messages each position file of a program has, and how many are wanted."""
    files = {key: path for key, path in options.items() if isinstance(path, Path)}
    counts = [
        f"{key}: {sum(1 for _ in read_positions(path)) if path.exists() else 0} messages"
        for key, path in files.items()
    ]
    return ", ".join([*counts, f"{options.get('count', 'all')} are wanted"])


def start_sender(directory: Path, **options: object) -> LoggedProcess:
    """Start a `Sender` that runs until it is stopped (give it a long `seconds`)."""
    words = _program("Sender", directory, options, SHORT_FLAGS)
    return LoggedProcess(words, directory / "Sender.log")


class WarmProgram(WarmChild):
    """The JVM of a `Sender` or `PushConsumer` that stays warm between rounds."""

    def __init__(self, name: str, directory: Path, **options: object) -> None:
        super().__init__(name, directory, _program(name, directory, {**options, "rounds": "stdin"}))
