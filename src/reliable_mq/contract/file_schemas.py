"""The folder of recorded payload schemas: one JSON file for each payload, or each of its versions.

Receives a folder. Reads and writes records. Files that are not ours are left alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from reliable_mq.contract.payloads import PayloadSchemas, Rule
from reliable_mq.errors import ConfigurationError

ENDING = ".payload.json"
_FILE_SIZE_MAX = 16 * 1024 * 1024


def file_name(payload: PayloadSchemas) -> str:
    """Return the name of a payload's file: "order.placed.v2.payload.json"."""
    version = f".v{payload.version}" if payload.version else ""
    return quote(f"{payload.name}{version}", safe="") + ENDING


def write_schemas(folder: Path, payloads: Sequence[PayloadSchemas]) -> list[str]:
    """Write the records that are missing or differ; return the names of the written files.

    Records of other payloads and of other versions stay.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in payloads:
            path, text = folder / file_name(each), _text_of(each)
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
                written.append(path.name)
    except OSError as error:
        raise ConfigurationError(f"{folder}: cannot be written: {error.strerror}") from error
    return written


def read_schemas(folder: Path) -> list[PayloadSchemas]:
    """Return the records of a folder, in the order of their names.

    Raises:
        ConfigurationError: there is no such folder, or a record cannot be read.
    """
    if not folder.is_dir():
        raise ConfigurationError(
            f"there is no folder {folder}: write it with reliable-mq schema write"
        )
    return [_record(path) for path in sorted(folder.glob(f"*{ENDING}"))]


def _text_of(payload: PayloadSchemas) -> str:
    return json.dumps(payload._asdict(), indent=2, ensure_ascii=False) + "\n"


def _record(path: Path) -> PayloadSchemas:
    try:
        if path.stat().st_size > _FILE_SIZE_MAX:
            why = f"it is larger than {_FILE_SIZE_MAX} bytes"
        else:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
            made = PayloadSchemas(**found)
            why = _fault_of(made)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        why = " ".join(str(error).split())
    if why:
        raise ConfigurationError(
            f"{path}: it is no record of a payload: {why:.200}; write it again with "
            "reliable-mq schema write"
        )
    return made


def _fault_of(made: PayloadSchemas) -> str:
    """Return what is wrong with a record that was read; "": nothing."""
    if not isinstance(made.name, str) or made.rule not in get_args(Rule):
        return "its name or its rule is wrong"
    if not (type(made.version) is int and type(made.oldest) is int):
        return "its version is no number"
    if not all(each is None or isinstance(each, dict) for each in (made.reads, made.writes)):
        return "a schema is no object"
    return ""
