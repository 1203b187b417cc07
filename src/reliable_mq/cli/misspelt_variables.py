"""The warning of every command about variables of the environment that set nothing.

Receives the environment and the words of a command line. Prints one line for each such variable,
before the command begins, and notes this for child processes. It knows no setting: their module is
imported only if there is a variable that may be one.
"""

import logging
import os
from collections.abc import Sequence

from reliable_mq.cli.saying import say_raw, say_trouble
from reliable_mq.configuration.unknown_variables import TOLD_VARIABLE, candidates
from reliable_mq.telemetry import application_events
from reliable_mq.telemetry.json_lines import JsonFormatter


def tell_unknown_variables(words: Sequence[str]) -> None:
    """Warn of each variable that sets nothing, once for this command and its children."""
    if not candidates(os.environ):
        return
    from reliable_mq import settings  # noqa: PLC0415 - pydantic takes longer than most commands

    found = settings.unknown_variables()
    for variable, what in found.items():
        _warn(words, {"variable": variable, "meant": what})
    if found:
        told = os.environ.get(TOLD_VARIABLE, "")
        os.environ[TOLD_VARIABLE] = ",".join((*filter(None, (told,)), *found))


def _warn(words: Sequence[str], fields: dict[str, str]) -> None:
    """Print one warning, in JSON where the lines of this command's log are to be JSON."""
    event = application_events.SETTING_UNKNOWN
    if not _wants_json(words):
        say_trouble("warning", event.text % fields)
        return
    line = {"name": "reliable_mq.settings", "levelno": event.level, "levelname": event.level_name}
    record = logging.makeLogRecord(
        {**line, "msg": event.text, "args": fields, "event": event.name, **fields}
    )
    say_raw(JsonFormatter().format(record), err=True)


def _wants_json(words: Sequence[str]) -> bool:
    typed = " ".join(words).replace("=", " ").lower()
    if "--log-format" in typed:
        return "--log-format json" in typed
    return os.environ.get("RELIABLE_MQ_LOG_FORMAT", "").lower() == "json"
