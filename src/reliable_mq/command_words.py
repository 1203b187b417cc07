"""How a person types our commands: `reliable-mq VERB …`, or `python manage.py …` under Django.

Receives the words of a command, or a text with commands. Returns it as this project types it. Pure.
"""

import re

DJANGO_APPLICATION = "reliable_mq.contrib.django:mq"
BY_DJANGO = f"--app {DJANGO_APPLICATION}"
"""The options that find a project of Django; `manage.py` finds it without them."""

_ANY = " --app MODULE:OBJECT"
_DJANGO_WORDS = (
    (r" \(without Alembic: reliable-mq create-tables\)", ""),
    (r" \(with Alembic: reliable-mq migrate\)", ""),
    (r"call mq\.create_tables\(\) or run (?=reliable-mq)", "run "),
    (r"reliable-mq (?:migrate|create-tables)(?: --app MODULE:OBJECT)?", "python manage.py migrate"),
    (r"(?: --app)? MODULE:OBJECT", ""),
    (r"reliable-mq (?=[a-z]|--help)", "python manage.py reliable_mq "),
    (r"\b[a-z_]+ \(RELIABLE_MQ_([A-Z][A-Z_]*)\)", r'RELIABLE_MQ["\1"]'),
    (r"\bRELIABLE_MQ_([A-Z][A-Z_]*)\b", r'RELIABLE_MQ["\1"]'),
)


def typed(words: str, found_by: str = "") -> str:
    """Return a command to paste.

    Args:
        words: its words after `reliable-mq`.
        found_by: the options that find its application or database; "": it needs none.
    """
    if found_by == BY_DJANGO:
        return f"python manage.py reliable_mq {words}"
    return f"reliable-mq {words} {found_by}".rstrip()


def with_place(text: str, found_by: str) -> str:
    """Return a text whose commands find the application or the database.

    Args:
        text: it names commands with `--app MODULE:OBJECT`.
        found_by: as for `typed`.
    """
    if found_by != BY_DJANGO:
        return text.replace(_ANY, f" {found_by}" if found_by else "")
    for pattern, words in _DJANGO_WORDS:
        text = re.sub(pattern, words, text)
    return text
