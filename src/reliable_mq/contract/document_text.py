"""A document as text: JSON, or YAML. Pure.

The YAML is simple: block maps and lists, and every text in double quotes as JSON writes it. JSON's
quoted text is YAML's, so no library is needed.
"""

import json
from collections.abc import Iterator
from typing import Any


def as_json(document: Any) -> str:
    """Return a document of dicts, lists, texts, numbers, booleans and None as JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_yaml(document: Any) -> str:
    """Return the same as YAML 1.2."""
    return "\n".join(_lines(document, 0)) + "\n"


def _lines(value: Any, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(value, dict) and value:
        for name, part in value.items():
            key = _key(name)
            if isinstance(part, dict | list) and part:
                yield f"{indent}{key}:"
                yield from _lines(part, depth + 1)
            else:
                yield f"{indent}{key}: {_scalar(part)}"
    elif isinstance(value, list) and value:
        for part in value:
            if isinstance(part, dict | list) and part:
                first, *rest = _lines(part, depth + 1)
                yield f"{indent}- {first.strip()}"
                yield from rest
            else:
                yield f"{indent}- {_scalar(part)}"
    else:
        yield f"{indent}{_scalar(value)}"


def _key(name: object) -> str:
    text = str(name)
    is_plain = text.replace("_", "").replace("-", "").isalnum() and text.isascii()
    is_word = is_plain and text[0].isalpha() and text.lower() not in _WORDS
    return text if is_word else json.dumps(text, ensure_ascii=False)


_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
