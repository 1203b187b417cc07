"""Sends a changed copy of a dead letter: a new message of a transaction, with its audit entry."""

from collections.abc import Iterator

from reliable_mq.console.deeds import Chosen, Deed, NothingToDo, Preview, Sealed
from reliable_mq.console.list_dead_letters import dead_letter_actions
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.sql_work_audit import is_begun
from reliable_mq.console.users import Role
from reliable_mq.console.work import Order, Outcome, Part
from reliable_mq.errors import MessageRefused
from reliable_mq.escalate.dead_letter import DeadLetter
from reliable_mq.escalate.sql_audit import AuditEntry, SqlAudit
from reliable_mq.message_checks import OWN_FIELDS
from reliable_mq.message_digest import NOT_COVERED
from reliable_mq.sensitive import MaskMisplaced

COPY_OF = "copy_of"
"""The user property of a copy: the id of the message that it was made of."""
ACTION = "dlq copy"
COPY_BYTES_MAX = 256 * 1024
"""A longer payload would not fit into the form that a browser sends back."""


def letter_to_copy(sources: ConsoleSources, chosen: Chosen) -> DeadLetter:
    """Return the dead letter that a form names.

    Raises:
        NothingToDo: there is none, or its payload is no text.
    """
    group, message_id = chosen.more.get("group", ""), chosen.more.get("id", "")
    found = dead_letter_actions(sources).of_ids([message_id], group) if message_id else []
    if len(found) != 1:
        raise NothingToDo(f"group {group} has no dead letter {message_id}")
    text_of(sources, found[0])
    return found[0]


def text_of(sources: ConsoleSources, dead_letter: DeadLetter) -> str:
    """Return the payload of a dead letter as text. Its sensitive fields are masked.

    Raises:
        NothingToDo: it is no text, or too long, or it cannot be shown.
    """
    fields, body = sources.mq._declared.sensitive_of(dead_letter.topic), dead_letter.message.body
    if len(body) > COPY_BYTES_MAX:
        raise NothingToDo(
            f"its payload has {len(body):,} bytes, and a form changes {COPY_BYTES_MAX:,} at most."
            " Deliver the dead letter again as it is"
        )
    if fields:
        text = fields.masked(body)
        if text is None:
            raise NothingToDo(
                "its topic has sensitive fields, and its payload cannot be looked into: a form"
                " cannot show it. Deliver the dead letter again as it is"
            )
        return text
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise NothingToDo("its payload is no text: a form cannot change it") from error


def _whole(sources: ConsoleSources, dead_letter: DeadLetter, edited: str) -> str:
    """Return a changed payload in which each mask is the value of the dead letter again.

    Raises:
        NothingToDo: a mask is at another place.
    """
    fields = sources.mq._declared.sensitive_of(dead_letter.topic)
    try:
        return fields.restored(edited, dead_letter.message.body)
    except MaskMisplaced as error:
        raise NothingToDo(str(error)) from error


def _look(sources: ConsoleSources, chosen: Chosen) -> Preview:
    letter = letter_to_copy(sources, chosen)
    body = chosen.more.get("body", "")
    if not body.strip():
        raise NothingToDo("the payload is empty; RocketMQ carries no message without a body")
    _whole(sources, letter, body)
    # Compared as it is shown: else a right guess in place of a mask would be told from a wrong one.
    payload = "the same payload" if body == text_of(sources, letter) else "a changed payload"
    return Preview(
        total=1,
        lines=[
            f"a new message of topic {letter.topic}, with {payload}, {len(body.encode())} bytes",
            f"a copy of {letter.message.message_id}, which group {letter.group} has given up",
        ],
        happens=[
            "The copy gets an id of its own, and the key, tag and headers of the dead letter.",
            "The dead letter stays as it is: void its stub when the copy has had its effect.",
        ],
        doubles=[
            "Every group that reads the topic gets the copy.",
            "Also a group that has consumed the first message: the copy is another one for it.",
        ],
        seen_at=letter.time,
    )


def _parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
    chosen = sealed.chosen
    try:
        letter = letter_to_copy(sources, chosen)
        body = _whole(sources, letter, chosen.more["body"]).encode()
    except NothingToDo:
        letter = None
    if letter is None or letter.time != sealed.preview.seen_at:
        yield Part({Outcome.CHANGED: 1})
        return
    message = letter.message
    database = sources.databases[chosen.database]
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in NOT_COVERED | OWN_FIELDS
    }
    try:
        with sources.mq.transaction(database=chosen.database) as tx:
            connection = tx.session.connection()
            if is_begun(database, connection, order, sealed.preview.seen_at):
                yield Part({Outcome.CHANGED: 1}, ("it was begun before: see the audit",))
                return
            message_id = tx.send(
                letter.topic,
                body,
                tag=message.tag,
                key=message.keys[0] if message.keys else "",
                ordering_key=message.ordering_key,
                content_type=message.content_type or "text/plain; charset=utf-8",
                properties={**properties, COPY_OF: message.message_id},
            )
            act = AuditEntry(
                actor=order.actor,
                action=ACTION,
                message_id=message.message_id,
                changed=True,
                detail={"group": letter.group, "why": order.why, "copy": message_id},
                run_id=order.number,
            )
            now = database.clock.now_on(connection)
            SqlAudit(database.audit).write_acts(connection, [act], now)
    except MessageRefused as error:
        yield Part({Outcome.REFUSED: 1}, (str(error),))
        return
    yield Part({Outcome.DONE: 1}, (f"the copy is message {message_id}",))


COPY_DEAD_LETTER = Deed(
    name="dead-letter-copy",
    title="Send a changed copy",
    role=Role.OPERATOR,
    of_list=None,
    look=_look,
    parts=_parts,
    back="/dead-letters",
)
