"""The database operations that the scheduler needs, as one protocol for each part of a turn."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.due import ClaimedStubs, ClaimRequest, DueTopic
from reliable_mq.resend.topic_gate import TopicRow


class DueBook(Protocol):
    """Claims due stubs; see `sql_due`."""

    def agenda(self) -> list[DueTopic]: ...

    def claim(self, asked: ClaimRequest) -> ClaimedStubs: ...

    def begin_again(
        self, message_ids: Sequence[str], owner: str, until: float
    ) -> tuple[set[str], set[str]]: ...

    def consumed_elsewhere(self, message_ids: Collection[str]) -> dict[str, list[str]]: ...

    def views(
        self, message_ids: Collection[str], now: float
    ) -> dict[tuple[str, str], tuple[bool, bool]]: ...

    def confirm(self, message_ids: Sequence[str], now: float) -> None: ...

    def give_up(self, message_ids: Sequence[str], owner: str, now: float) -> None: ...

    def postpone(
        self, message_ids: Sequence[str], owner: str, next_time: float, *, untried: bool = False
    ) -> None: ...


class SendBook(Protocol):
    """Records the outcomes of sends; see `outbox.sql_stubs`."""

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None: ...


class TopicBook(Protocol):
    """Stores which topics are paused, or closed because their sends fail; see `sql_topics`."""

    def rows(self) -> Mapping[str, TopicRow]: ...

    def add_failures(self, topic: str, failures: int, now: float, error: str) -> TopicRow: ...

    def sent(self, topic: str, now: float) -> None: ...

    def opened(self, topic: str, now: float) -> None: ...

    def take_probe(self, topic: str, now: float) -> bool: ...

    def release_probe(self, topic: str, now: float) -> None: ...


class OpeningBook(Protocol):
    """Makes the waiting stubs of a topic due after it has opened; see `sql_opening`."""

    def make_due(self, topic: str, now: float) -> bool: ...


class EscalationBook(Protocol):
    """Gives stubs to a person; see `sql_escalations`."""

    def used_up(self, stubs: Sequence[Stub], owner: str, now: float) -> int:
        """Send these stubs no more and escalate them; return how many `owner` still owned."""
        ...


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """One database.

    Attributes:
        due: claims due stubs.
        sends: records the outcomes of sends.
        topics: the states of topics.
        opening: makes the waiting stubs of a topic due.
        escalations: escalates stubs.
        notice_topic: the topic with notices for this database, from consumer groups of other
            databases. "": there is none.
        clock: the database's time in seconds. By default it never moves, as if sends took no time.
    """

    due: DueBook
    sends: SendBook
    topics: TopicBook
    opening: OpeningBook
    escalations: EscalationBook
    notice_topic: Callable[[], str] = str
    clock: Callable[[], float] = float
