"""What one turn of the scheduler takes: of each topic that may be sent to, a fair share.

Receives the agenda and what is known of topics; hands on claims, and tells the topics what became
of their sends. No topic's stubs, however many or however poisoned, keep another topic's waiting.
"""

import logging
from collections.abc import Mapping, Sequence

import msgspec

from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.book import Book
from reliable_mq.resend.due import (
    NOTHING,
    ClaimedStubs,
    ClaimRequest,
    DueKind,
    DueTopic,
    due_topics,
    next_time,
    share,
)
from reliable_mq.resend.topic_gate import (
    PROBE_STUBS,
    TopicGate,
    TopicRow,
    after_failure,
    gate_of,
    verdict_of,
)

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
        self._opening = book.opening
        self._count_max = count_max
        self._owner = owner
        self._lease = lease
        self._batch = batch
        self._room = batch
        self._agenda: Sequence[DueTopic] = ()
        self._rows: dict[str, TopicRow] = {}
        #: When something becomes due that was not yet due at the last `begin`; None: nothing.
        self.next_time: float | None = None

    def begin(self, now: float) -> None:
        """Read what is known of topics, go on opening those that open, and read what waits."""
        self._rows = dict(self._topics.rows())
        for topic in [row.topic for row in self._rows.values() if row.is_opening]:
            if not self._opening.hurry(topic, now):
                self._topics.opened(topic, now)
        self._agenda = self._due.agenda()
        probes = [row.probe_time for row in self._rows.values() if row.probe_time is not None]
        times = [next_time(self._agenda, now), *(each for each in probes if each > now)]
        self.next_time = min((each for each in times if each is not None), default=None)

    def claims(self, kind: DueKind, now: float) -> ClaimedStubs:
        """Claim what is due of a kind; of suspects one."""
        room = 1 if kind is DueKind.SUSPECT else self._room
        gates = {
            topic: gate
            for topic in due_topics(self._agenda, kind, now, self._batch, self._probed(kind, now))
            if (gate := self._gate(kind, topic, now)) in (TopicGate.OPEN, TopicGate.PROBE)
        }
        found = NOTHING
        for place, (topic, gate) in enumerate(gates.items()):
            if room <= 0:
                return found.plus(NOTHING, is_full=True)
            limit = share(room, len(gates) - place)
            if gate is TopicGate.PROBE:
                claims = self._probe(kind, topic, now, limit)
                room -= claims.claimed  # what it only looked at is left to others
            else:
                claims = self._claim(kind, topic, now, limit)
                claims = claims.plus(NOTHING, is_full=claims.found >= limit)
                room -= claims.found
            found = found.plus(claims)
        return found

    def _probed(self, kind: DueKind, now: float) -> set[str]:
        """Return the closed topics of which a probe takes what is not due, too."""
        if kind is not DueKind.UNSENT:
            return set()
        return {topic for topic, row in self._rows.items() if gate_of(row, now) is TopicGate.PROBE}

    def _probe(self, kind: DueKind, topic: str, now: float, share: int) -> ClaimedStubs:
        """Claim a few stubs of a closed topic; a probe that sends nothing is given back.

        What may not go yet is moved out of the way, and what it waits for goes. Where that may not
        go either, more is moved, and still only a few are sent. While nothing is due that may go,
        something goes before its time.
        """
        if not self._topics.take_probe(topic, now):
            return NOTHING
        few = min(share, PROBE_STUBS)
        asked = self._request(kind, topic, now, few, is_probe=True)
        claims = self._due.claim(asked)
        if not claims.stubs and claims.found == few < share:
            wider = msgspec.structs.replace(asked, limit=share - few, sent_max=few)
            more = self._due.claim(wider)
            claims = claims.plus(more, is_full=more.found == share - few and not more.stubs)
        if not claims.stubs and kind is DueKind.UNSENT:
            claims = claims.plus(self._due.claim(msgspec.structs.replace(asked, is_early=True)))
        if not claims.stubs:
            self._topics.give_probe_back(topic, now)
        return claims

    def _gate(self, kind: DueKind, topic: str, now: float) -> TopicGate:
        gate = gate_of(self._rows.get(topic), now)
        if kind is DueKind.SENT and gate is not TopicGate.PAUSED:
            return TopicGate.OPEN  # it is looked at, and sent only when the broker has answered
        return gate

    def _claim(self, kind: DueKind, topic: str, now: float, limit: int) -> ClaimedStubs:
        """Claim of one topic: the earliest and, where there are more, some of the latest."""
        newest = limit // NEWEST_PART if kind is DueKind.UNSENT else 0
        asked = self._request(kind, topic, now, limit - newest)
        claims = self._due.claim(asked)
        if newest and claims.found == asked.limit:
            last = msgspec.structs.replace(asked, limit=newest, newest=True)
            claims = claims.plus(self._due.claim(last))
        return claims

    def _request(
        self, kind: DueKind, topic: str, now: float, limit: int, *, is_probe: bool = False
    ) -> ClaimRequest:
        return ClaimRequest(
            kind=kind,
            topic=topic,
            now=now,
            owner=self._owner,
            lease=self._lease,
            limit=limit,
            count_max=self._count_max,
            is_probe=is_probe,
        )

    def judge(
        self, stubs: Sequence[Stub], outcomes: Sequence[SendOutcome], now: float
    ) -> list[SendOutcome]:
        """Close topics to which nothing could be sent, open those where something arrived.

        Returns what is to be recorded: a send that failed because its topic is closed is none of
        its stub's, which has as many left as before; the next one is the topic's to say. So is one
        that failed in an open topic, where the stub's own wait were long.
        """
        of_topic: dict[str, list[SendOutcome]] = {stub.topic: [] for stub in stubs}
        stub_of = {stub.message_id: stub for stub in stubs}
        for outcome in outcomes:
            of_topic[stub_of[outcome.message_id].topic].append(outcome)
        born = {message_id: stub.create_time for message_id, stub in stub_of.items()}
        return [
            judged
            for topic, ended in of_topic.items()
            for judged in self._judge_topic(topic, ended, born, now)
        ]

    def _judge_topic(
        self,
        topic: str,
        outcomes: Sequence[SendOutcome],
        born: Mapping[str, float],
        now: float,
    ) -> Sequence[SendOutcome]:
        known, verdict = self._rows.get(topic, TopicRow(topic=topic)), verdict_of(outcomes)
        if verdict.failures:
            row = self._rows[topic] = self._topics.failed(
                topic, verdict.failures, now, verdict.error
            )
            if row.is_closed and not known.is_closed:
                said = "topic %s: %d sends failed and none arrived, so only probes go: %s"
                log.warning(said, topic, row.failures, verdict.error)
            free = known.is_closed
            return [
                each
                if each.is_refused
                else after_failure(each, row, now, born[each.message_id], free=free)
                for each in outcomes
            ]
        if verdict.arrived and known.failures:
            if known.is_closed:
                log.warning("topic %s: sends arrive again", topic)
            self._topics.sent(topic, now)
            del self._rows[topic]
        elif known.is_closed and not verdict.arrived:
            self._topics.give_probe_back(topic, now)
        return outcomes

    def fit(self, sent: int, took: float) -> None:
        """Take fewer at once where sending takes long (seconds), so that claims outlast it.

        That a few were quick says nothing of many.
        """
        if took > self._lease / 4:
            self._room = max(self._room // 2, 1)
        elif took < self._lease / 16 and sent * 2 >= self._room:
            self._room = min(self._room * 2, self._batch)
