"""Checks of readers: does a consumer read each topic and tag? A misspelt one is only stored."""

from sqlalchemy import func, select

from reliable_mq.database.sql_stub_table import UNCONFIRMED
from reliable_mq.doctor.check_context import CheckContext
from reliable_mq.doctor.finding import CheckFindings
from reliable_mq.names import tags_of
from reliable_mq.outbox.stub import groups_of


def readers(context: CheckContext, report: CheckFindings) -> None:
    """Every topic with messages has a reader, and every required group subscribes to their tags.

    The brokers know the readers, including those of other applications.
    """
    cluster = context.cluster
    if cluster is None:
        report.skip("the brokers cannot be asked who reads")
        return
    for topic, number in sorted(context.unawaited.items()):
        if cluster.readers.get(topic) == frozenset():
            report.warn(
                f"nobody reads topic {topic}: of the newest messages {number} count as delivered "
                "because the broker stored them",
                "correct its name; or run its consumers; or declare that it has no readers: "
                f"mq.topic({topic!r}, groups=[])",
            )
    _unwanted(context, report)
    if not report.findings:
        report.ok("what is sent is read by somebody")


def _unwanted(context: CheckContext, report: CheckFindings) -> None:
    """Report messages that wait for a connected group without a matching subscription."""
    if context.cluster is None or not context.cluster.subscriptions:
        return
    stub = context.database.stubs.c
    waiting = (stub.topic, stub.tag, stub.required_groups)
    sent = (stub.status == UNCONFIRMED, stub.broker_name.is_not(None))
    found = context.connection.execute(
        select(*waiting, func.count()).where(*sent).group_by(*waiting).order_by(*waiting)
    )
    for topic, tag, groups, number in found:
        for group in groups_of(groups):
            wanted = context.cluster.subscriptions.get(group)
            if wanted is None:
                continue  # no consumer is connected; another check reports that
            tags = wanted.get(topic, "")
            if tags is None or (tags and (not tags_of(tags) or tag in tags_of(tags))):
                continue
            what = f"with tag {tag!r}" if tag else "without a tag"
            why = f"it wants {tags!r} only" if tags else "it does not subscribe to that topic"
            report.error(
                f"{number} stub(s) of topic {topic} {what} wait for group {group}, and {why}: they "
                "are sent again and again, and never consumed",
                f"correct the topic or the tag where they are sent, or what {group} subscribes to; "
                "then, for each, reliable-mq stub void ID --app MODULE:OBJECT",
            )
