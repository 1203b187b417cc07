"""The reference page of log events, from the catalogue."""

from tests.documentation.declared import code, table

from reliable_mq.telemetry.log_events import PARTS

HEAD = """# Log events

Each log line is one of these events. The record has the field `event`, and the event's fields. With
`--log-format json` a line is one object with them. In the text, `%(group)s` is the place of the
field `group`. [Observation](observation.md#logging) says how to choose format and level.

"""


def page() -> str:
    """Return the page."""
    parts = []
    for part, events in PARTS.items():
        rows = [
            [
                code(each.name),
                each.level_name,
                code(" ".join(each.text.split()).replace("`", "'")),
                ", ".join(map(code, each.fields)) or "none",
            ]
            for each in events
        ]
        parts.append(f"## Of the {part}\n\n{table(('event', 'level', 'text', 'fields'), rows)}\n")
    return HEAD + "\n".join(parts)
