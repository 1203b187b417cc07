"""Whether anything knows a topic that a person has typed: a pause of a wrong name helps nobody."""

from sqlalchemy import select

from reliable_mq.console.sources import ConsoleSources, ask
from reliable_mq.escalate.sql_stub_ways import ways_of
from reliable_mq.escalate.stub_filter import StubFilter


def unknown_topic(sources: ConsoleSources, topic: str) -> list[str]:
    """Return a warning if no application, database or broker knows a topic.

    Args:
        sources: what is asked.
        topic: its name, without the namespace.
    """
    if topic in sources.mq.topics or _has_stubs(sources, topic):
        return []
    whole = sources.whole_name(topic)
    if sources.why_no_cluster:
        asked = "The brokers cannot be asked"
    else:
        answer = ask(lambda: _names(sources))
        if whole in (answer.value or ()):
            return []
        asked = "The brokers do not answer" if answer.value is None else "No broker has it"
    told = f"No application that this console knows declares topic {topic}, and no stub is of it."
    return [f"{told} {asked}. Check the spelling: nothing uses this name."]


def _names(sources: ConsoleSources) -> set[str]:
    with sources.admin() as admin:
        return {*admin.topics.names().value}


def _has_stubs(sources: ConsoleSources, topic: str) -> bool:
    for name in sources.databases:
        with sources.reading(name) as (database, connection):
            seq = database.stubs.c.seq
            for way in ways_of(database.stubs, StubFilter(topic=topic)):
                for part in way.parts:
                    if connection.execute(select(seq).where(part).limit(1)).first() is not None:
                        return True
    return False
