"""The file `env` of `reliable-mq dev`: the addresses of its servers, for other terminals.

Receives addresses by variable. A terminal that has read this file may start `dev` again. Its
variables then name servers of the former `dev`, which have ended. So the file also says which
addresses `dev` has made itself, and these are not taken for the user's own.
"""

import hashlib
import os
import shlex
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

MADE = "_RELIABLE_MQ_OF_DEV"
"""Names the addresses that a `dev` has made, each by a hash: an address may have a password."""

_HASH_LENGTH = 16


def write_environment(path: Path, variables: Mapping[str, str], made: Iterable[str]) -> None:
    """Write the file.

    Args:
        path: of the file.
        variables: their values by name.
        made: the addresses among them that this `dev` has made.
    """
    marks = ",".join(sorted(map(_mark_of, made)))
    lines = [
        f"export {name}={shlex.quote(value)}\n"
        for name, value in (*variables.items(), *([(MADE, marks)] if marks else ()))
    ]
    path.touch(mode=0o600)  # a URL may have a password
    path.chmod(0o600)  # it may be there, with another mode
    path.write_text("".join(lines), "utf-8")


def forget_former(variables: MutableMapping[str, str] = os.environ) -> None:
    """Remove the variables whose values are addresses that a former `dev` has made."""
    marks = variables.pop(MADE, "").split(",")
    for name in [name for name, value in variables.items() if _mark_of(value) in marks]:
        del variables[name]


def _mark_of(value: str) -> str:
    return hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:_HASH_LENGTH]
