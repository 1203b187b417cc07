"""Text of strangers, made harmless for a terminal and for a log.

A tag, a body or a group's name is whatever somebody sent. Escape sequences would move the cursor,
hide text or set a terminal up, and a line break would forge a line. Pure.
"""

import unicodedata


def cut(text: str, length_max: int) -> str:
    """Return a text of at most `length_max` characters and a word on how many more there were."""
    if len(text) <= length_max:
        return text
    return f"{text[:length_max]}... ({len(text) - length_max} characters more)"


def printable(text: str, length_max: int | None = None) -> str:
    r"""Return a text with all that does not print as escapes, such as `\x1b` and `\n`.

    Args:
        text: what a stranger wrote.
        length_max: how many of its characters to return; None means all. What is longer is cut,
            and the end says how many characters are left out.
    """
    if length_max is not None:
        text = cut(text, length_max)
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def printable_lines(text: str, length_max: int | None = None) -> str:
    """Return a text as `printable` does, but keep its line breaks and tabs.

    Args:
        text: what a stranger wrote a part of.
        length_max: how many characters of each line to return; None means all.
    """
    return "\n".join(
        "\t".join(printable(part, length_max) for part in line.split("\t"))
        for line in text.split("\n")
    )


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":  # a space of any width
        return character
    return character.encode("unicode_escape").decode()
