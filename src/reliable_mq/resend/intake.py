"""The intake of the scheduler: each turn claims a fair share of every topic that is open.

Receives the agenda and the states of topics. Returns claims, and records in the topics whether
their sends arrived. Many stubs or poisoned stubs of one topic do not delay another topic.
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
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

NEWEST_PART = 4
"""If a topic has more due stubs than its share, 1/NEWEST_PART of the share goes to the stubs that
became due last. So new stubs do not wait for all old ones."""


class Intake:
    """Claims for one scheduler.

    Invariant R3: 1 <= room <= batch. One turn claims at most `room` stubs of one kind.

    Args:
        book: the database.
        owner: the scheduler's name.
        lease: seconds that a claim lasts.
        batch: most stubs of each kind that one turn claims.
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
        #: When the next stub or probe becomes due, as of the last `begin`. None: there is none.
        self.next_time: float | None = None

    def begin(self, now: float) -> None:
        """Read the states of topics, continue to open those that are opening, read the agenda."""
        self._rows = dict(self._topics.rows())
        for topic in [row.topic for row in self._rows.values() if row.is_opening]:
            if not self._opening.make_due(topic, now):
                self._topics.opened(topic, now)
        self._agenda = self._due.agenda()
        probes = [row.probe_time for row in self._rows.values() if row.probe_time is not None]
        times = [next_time(self._agenda, now), *(each for each in probes if each > now)]
        self.next_time = min((each for each in times if each is not None), default=None)

    def claims(self, kind: DueKind, now: float) -> ClaimedStubs:
        """Claim due stubs of a kind; only one if the kind is SUSPECT."""
        room = 1 if kind is DueKind.SUSPECT else self._room
        gates = {
            topic: gate
            for topic in due_topics(self._agenda, kind, now, self._batch, self._probed(kind, now))
            if (gate := self._gate(kind, topic, now)) in (TopicGate.OPEN, TopicGate.PROBE)
        }
        found = NOTHING
        for place, (topic, gate) in enumerate(gates.items()):
            if room <= 0:
                return found.union(NOTHING, is_full=True)
            limit = share(room, len(gates) - place)
            if gate is TopicGate.PROBE:
                claims = self._probe(kind, topic, now, limit)
                room -= claims.claimed  # stubs that were only read do not use room
            else:
                claims = self._claim(kind, topic, now, limit)
                claims = claims.union(NOTHING, is_full=claims.found >= limit)
                room -= claims.found
            found = found.union(claims)
        return found

    def _probed(self, kind: DueKind, now: float) -> set[str]:
        """Return the closed topics whose probe is due: it may claim stubs before their time."""
        if kind is not DueKind.UNSENT:
            return set()
        return {topic for topic, row in self._rows.items() if gate_of(row, now) is TopicGate.PROBE}

    def _probe(self, kind: DueKind, topic: str, now: float, share: int) -> ClaimedStubs:
        """Claim a few stubs of a closed topic as a probe. Return the probe if it sends nothing.

        A stub that waits for an earlier one is put aside, and the earlier one is sent. If that may
        not be sent either, more stubs are put aside, but still only a few are sent. If no due stub
        may be sent, one that is not due yet is sent.
        """
        if not self._topics.take_probe(topic, now):
            return NOTHING
        few = min(share, PROBE_STUBS)
        asked = self._request(kind, topic, now, few, is_probe=True)
        claims = self._due.claim(asked)
        if not claims.stubs and claims.found == few < share:
            wider = msgspec.structs.replace(asked, limit=share - few, sent_max=few)
            more = self._due.claim(wider)
            claims = claims.union(more, is_full=more.found == share - few and not more.stubs)
        if not claims.stubs and kind is DueKind.UNSENT:
            claims = claims.union(self._due.claim(msgspec.structs.replace(asked, is_early=True)))
        if not claims.stubs:
            self._topics.release_probe(topic, now)
        return claims

    def _gate(self, kind: DueKind, topic: str, now: float) -> TopicGate:
        gate = gate_of(self._rows.get(topic), now)
        if kind is DueKind.SENT and gate is not TopicGate.PAUSED:
            return TopicGate.OPEN  # it is checked, and sent only after the broker has answered
        return gate

    def _claim(self, kind: DueKind, topic: str, now: float, limit: int) -> ClaimedStubs:
        """Claim stubs of one topic: the earliest and, if there are more, some of the latest."""
        newest = limit // NEWEST_PART if kind is DueKind.UNSENT else 0
        asked = self._request(kind, topic, now, limit - newest)
        claims = self._due.claim(asked)
        if newest and claims.found == asked.limit:
            last = msgspec.structs.replace(asked, limit=newest, newest=True)
            claims = claims.union(self._due.claim(last))
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
        """Close topics whose sends all failed, and open topics where a send arrived.

        Returns the outcomes to record. A send that failed in a closed topic does not count for its
        stub, and the topic sets the time of the next send. The same holds for a send that failed in
        an open topic, if the stub's own wait would be long.
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
            row = self._rows[topic] = self._topics.add_failures(
                topic, verdict.failures, now, verdict.error
            )
            if row.is_closed and not known.is_closed:
                application_events.TOPIC_CLOSED.log(
                    log, topic=topic, failures=row.failures, error=verdict.error
                )
            free = known.is_closed
            return [
                each
                if each.is_refused
                else after_failure(each, row, now, born[each.message_id], free=free)
                for each in outcomes
            ]
        if verdict.arrived and known.failures:
            if known.is_closed:
                application_events.TOPIC_OPEN.log(log, topic=topic)
            self._topics.sent(topic, now)
            del self._rows[topic]
        elif known.is_closed and not verdict.arrived:
            self._topics.release_probe(topic, now)
        return outcomes

    def fit(self, sent: int, took: float) -> None:
        """Adapt the room to the seconds that a batch of sends took, so that leases do not expire.

        A quick batch with few stubs does not raise the room: it says nothing about a full batch.
        """
        if took > self._lease / 4:
            self._room = max(self._room // 2, 1)
        elif took < self._lease / 16 and sent * 2 >= self._room:
            self._room = min(self._room * 2, self._batch)
