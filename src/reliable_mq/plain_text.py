"""Makes text from other programs harmless for a terminal and for a log. Pure.

A tag, a body or a group's name is any text that somebody sent. Escape sequences would move the
cursor, hide text or change the terminal, and a line break would forge a line.
"""

import unicodedata


def cut(text: str, length_max: int) -> str:
    """Return at most `length_max` characters of a text; the end says how many are left out."""
    if len(text) <= length_max:
        return text
    return f"{text[:length_max]}... ({len(text) - length_max} characters more)"


def times(count: int) -> str:
    """Return how often, as a person says it: "once", "3 times"."""
    return "once" if count == 1 else f"{count} times"


def a_kind(value: object) -> str:
    """Return the type of a value with its article, "an int"; "None" for None."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def printable(text: str, length_max: int | None = None) -> str:
    r"""Return a text with unprintable characters as escapes, such as `\x1b` and `\n`.

    Args:
        text: text from another program.
        length_max: how many of its characters to return; None means all. A longer text is cut,
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
        text: text that is partly from another program.
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
