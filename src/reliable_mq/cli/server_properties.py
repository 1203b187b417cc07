"""`--config` and `--set` of the servers: properties with Apache RocketMQ's names.

Receives a file and words of the command line; returns properties. It knows no property but those
that hold a secret.
"""

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from reliable_mq.access.access_settings import SECRET_PROPERTIES
from reliable_mq.errors import ConfigurationError
from reliable_mq.line_limit import limited_log
from reliable_mq.plain_text import cut
from reliable_mq.runtime.tls_settings import CONFIG_FILE, KEY_PASSWORDS, PREFIX
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.java_properties import names_without_sign, parse_properties

log = limited_log(__name__)

_SECRETS = frozenset({*SECRET_PROPERTIES, *KEY_PASSWORDS})
_SHOWN_MAX = 80  # characters of a name in an error
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A property, name=value; overrides the file; repeatable.",
        show_default=False,
    ),
]


def read_server_properties(config: Path | None, settings: Sequence[str]) -> dict[str, str]:
    """Return the properties of a file, of the file that `tls.config.file` names, and of `--set`.

    Each overrides those before it. A secret is accepted in a file only: everybody on the machine
    can read a command line.

    Raises:
        ConfigurationError: when a file cannot be read, or a setting is not name=value.
    """
    properties = _of_file("--config", config) if config is not None else {}
    given: dict[str, str] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        name = name.strip()
        if name in _SECRETS:
            raise ConfigurationError(
                f"--set {name}: everybody on this machine can read a command line; write it into "
                "the file of --config"
            )
        if not sign or not name:
            raise ConfigurationError(f"--set {name}: write name=value")
        given[name] = value.strip()
    tls_file = {**properties, **given}.get(CONFIG_FILE)
    for of_tls in (properties, given):
        of_tls.pop(CONFIG_FILE, None)
    if tls_file:
        found = _of_file(CONFIG_FILE, Path(tls_file))
        properties |= {name: value for name, value in found.items() if name.startswith(PREFIX)}
    return {**properties, **given}


def _of_file(what: str, path: Path) -> dict[str, str]:
    try:
        text, mode = path.read_text("utf-8"), path.stat().st_mode
    except OSError as error:
        raise ConfigurationError(f"{what} {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{what} {path}: it is not a text in UTF-8") from error
    if names := names_without_sign(text):
        shown = cut(names[0], _SHOWN_MAX)
        raise ConfigurationError(f"{what} {path}: the line of {shown!r} has no =: write name=value")
    found = parse_properties(text)
    if mode & stat.S_IROTH and (secrets := sorted(found.keys() & _SECRETS)):
        problem = f"{path}: everybody on this machine can read {secrets[0]}: chmod o-r {path}"
        broker_events.BROKER_SETTING_DOUBTFUL.log(log, problem=problem)
    return found
