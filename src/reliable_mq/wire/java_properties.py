"""Properties as text: the format of broker.conf, and of the settings that tools send and get.

Source: `java.util.Properties`, Apache RocketMQ `MixAll`.
"""

import re
from collections.abc import Iterator, Mapping


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties of a broker.conf, read by the rules of `java.util.Properties`.

    A line is `name=value`, `name:value` or `name value`. `#` and `!` begin a comment line. A
    backslash at the end of a line continues the line. A backslash before any other character is
    removed, and the character stays.
    """
    return {_unescape(name): _unescape(value) for name, _, value in _lines_of(text)}


def names_without_sign(text: str) -> list[str]:
    """Return the names of a broker.conf that neither `=` nor `:` follows."""
    return [_unescape(name) for name, sign, _ in _lines_of(text) if not sign]


def _lines_of(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, sign and value of each line, with their backslashes."""
    lines = re.sub(r"(?<!\\)((?:\\\\)*)\\\n[ \t\f]*", r"\1", text.replace("\r\n", "\n"))
    for line in lines.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            name, sign, value = _LINE.match(stripped).groups()  # type: ignore[union-attr]
            yield name, sign, value


_LINE = re.compile(r"((?:\\.|[^\\=:\s])*)\s*([=:]?)\s*(.*)", re.DOTALL)


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def format_properties(values: Mapping[str, object]) -> str:
    """Return properties in the format of `java.util.Properties`, one per line."""
    lines = (f"{name}={as_property(value)}" for name, value in values.items())
    return "".join(line.replace("\\", "\\\\") + "\n" for line in lines)


def as_property(value: object) -> str:
    """Return a value as text: `true` and `false` for booleans."""
    return str(value).lower() if isinstance(value, bool) else str(value)
