"""What one turn of the scheduler takes: of each topic that may be sent to, a fair share.

Receives the agenda and what is known of topics; hands on claims, and tells the topics what became
of their sends. No topic's stubs, however many or however poisoned, keep another topic's waiting.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.book import Book
from reliable_mq.resend.due import (
    NOTHING,
    Agenda,
    ClaimRequest,
    Claims,
    DueKind,
    due_topics,
    next_time,
    share,
)
from reliable_mq.resend.topic_gate import PROBE_STUBS, Gate, TopicRow, gate_of, verdict_of

log = logging.getLogger(__name__)

NEWEST_PART = 4
"""Of a topic with more due than its share, one in so many is taken from those that became due last:
what is new does not wait for all that is old."""


class Intake:
    """Claims for one scheduler.

    Invariant: 1 <= room <= batch; what is claimed at once, of one kind, is at most the room.

    Args:
        book: the database.
        owner: the scheduler's name.
        lease: seconds for which a claim holds.
        batch: most stubs claimed at once, of each kind.
        count_max: sends after which a stub is used up.
    """

    def __init__(self, book: Book, *, owner: str, lease: float, batch: int, count_max: int) -> None:
        self._due = book.due
        self._topics = book.topics
        self._count_max = count_max
        self._owner = owner
        self._lease = lease
        self._batch = batch
        self._room = batch
        self._agenda: Sequence[Agenda] = ()
        self._rows: Mapping[str, TopicRow] = {}
        #: When something becomes due that was not yet due at the last `begin`; None: nothing.
        self.next_time: float | None = None

    def begin(self, now: float) -> None:
        """Read what waits, and what is known of topics."""
        self._agenda, self._rows = self._due.agenda(), self._topics.rows()
        probes = [row.probe_time for row in self._rows.values() if row.probe_time is not None]
        times = [next_time(self._agenda, now), *(each for each in probes if each > now)]
        self.next_time = min((each for each in times if each is not None), default=None)

    def claims(self, kind: DueKind, now: float) -> Claims:
        """Claim what is due of a kind; of suspects one."""
        room = 1 if kind is DueKind.SUSPECT else self._room
        topics = [
            (topic, gate)
            for topic in due_topics(self._agenda, kind, now, self._batch)
            if (gate := self._gate(kind, topic, now)) in (Gate.OPEN, Gate.PROBE)
        ]
        found = NOTHING
        for place, (topic, gate) in enumerate(topics):
            if room <= 0:
                return found.plus(NOTHING, is_full=True)
            if gate is Gate.PROBE and not self._topics.take_probe(topic, now):
                continue
            limit = share(room, len(topics) - place)
            limit = min(limit, PROBE_STUBS) if gate is Gate.PROBE else limit
            claims = self._claim(kind, topic, now, limit)
            room -= claims.found
            found = found.plus(claims, is_full=gate is Gate.OPEN and claims.found >= limit)
        return found

    def _gate(self, kind: DueKind, topic: str, now: float) -> Gate:
        gate = gate_of(self._rows.get(topic), now)
        if kind is DueKind.SENT and gate is not Gate.PAUSED:
            return Gate.OPEN  # it is looked at, and sent only when the broker has answered
        return gate

    def _claim(self, kind: DueKind, topic: str, now: float, limit: int) -> Claims:
        """Claim of one topic: the earliest and, where there are more, some of the latest."""
        newest = limit // NEWEST_PART if kind is DueKind.UNSENT else 0
        asked = ClaimRequest(
            kind=kind,
            topic=topic,
            now=now,
            owner=self._owner,
            lease=self._lease,
            limit=limit - newest,
            count_max=self._count_max,
        )
        claims = self._due.claim(asked)
        if newest and claims.found == asked.limit:
            last = msgspec.structs.replace(asked, limit=newest, newest=True)
            claims = claims.plus(self._due.claim(last))
        return claims

    def judge(
        self, stubs: Sequence[Stub], outcomes: Sequence[SendOutcome], now: float
    ) -> list[SendOutcome]:
        """Close topics to which nothing could be sent, open those where something arrived.

        Returns what is to be recorded: a send that failed because its topic is closed is none of
        its stub's, which has as many left as before.
        """
        of_topic: dict[str, list[SendOutcome]] = defaultdict(list)
        topic_of = {stub.message_id: stub.topic for stub in stubs}
        for outcome in outcomes:
            of_topic[topic_of[outcome.message_id]].append(outcome)
        forgiven: set[str] = set()
        for topic, ended in of_topic.items():
            known, verdict = self._rows.get(topic), verdict_of(ended)
            if verdict.failures:
                row = self._topics.failed(topic, verdict.failures, now, verdict.error)
                if known is not None and known.is_closed:
                    forgiven |= {each.message_id for each in ended if not each.is_refused}
                elif row.is_closed:
                    said = "topic %s: %d sends failed and none arrived, so only probes go: %s"
                    log.warning(said, topic, row.failures, verdict.error)
            elif verdict.arrived and known is not None and known.failures:
                if known.is_closed:
                    log.warning("topic %s: sends arrive again", topic)
                self._topics.sent(topic, now)
        return [
            msgspec.structs.replace(each, count=each.count - 1)
            if each.message_id in forgiven
            else each
            for each in outcomes
        ]

    def fit(self, sent: int, took: float) -> None:
        """Take fewer at once where sending takes long (seconds), so that claims outlast it.

        That a few were quick says nothing of many.
        """
        if took > self._lease / 4:
            self._room = max(self._room // 2, 1)
        elif took < self._lease / 16 and sent * 2 >= self._room:
            self._room = min(self._room * 2, self._batch)
