"""Passwords in the URLs of the tests' servers, and the search for them in all that tests print.

The servers take any password: PostgreSQL trusts every login, and Valkey's default user has none. So
a password that appears in captured output, log lines or log files was printed by our code.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path

PLANTED = f"planted{secrets.token_hex(6)}"
"""The password of this run."""

_LOGS = ("*.log", "*.out", "*.txt", "*.jsonl", "out", "err", "stdout", "stderr")
_SIZE_MAX = 1 << 20  # bytes of a file that is read


def planted(url: str) -> str:
    """Return the URL of a server with a password that the server does not ask for."""
    scheme, slashes, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    return f"{scheme}{slashes}{login or 'default'}:{PLANTED}{at or '@'}{place}"


def leaks_in_files(folder: Path) -> Iterator[str]:
    """Yield the log files in a folder of a test, and one level below, that have the password."""
    for pattern in _LOGS:
        for file in (*folder.glob(pattern), *folder.glob(f"*/{pattern}")):
            is_small = file.is_file() and file.stat().st_size <= _SIZE_MAX
            if is_small and PLANTED.encode() in file.read_bytes():
                yield str(file)
