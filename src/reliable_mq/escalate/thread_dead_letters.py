"""The dead letters of an application: list them at the broker, and retry them.

The broker takes part in no database transaction. So a retry has one transaction in each database
before it asks the broker, and one after. `sql_dead_letters` says what a crash in between leaves.
"""

import itertools
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from reliable_mq.client.administering.thread_browser import Browser
from reliable_mq.client.asyncio_client import DEFAULT_SETTINGS
from reliable_mq.client.settings import ClientSettings
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import NoRoute, ReliableMQError, RemoteError
from reliable_mq.escalate.dead_letter import DeadLetter, DeadLetterFilter, newest
from reliable_mq.escalate.sql_audit import SqlAudit
from reliable_mq.escalate.sql_dead_letters import (
    ACTION,
    CLAIM_SECONDS,
    DeadLetterState,
    SqlDeadLetters,
    both,
    intent,
)
from reliable_mq.escalate.sql_escalations import escalations_of
from reliable_mq.escalate.sql_one_at_a_time import one_at_a_time
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

AT_ONCE = 200
"""Most dead letters of one transaction."""
_OPEN = ("waiting", "unknown")
_BACK = (timedelta(hours=1), timedelta(days=1), timedelta(days=7))
_UNCLEAR = f"; it may have been sent: if it does not come, try again {CLAIM_SECONDS:.0f} s later"
_TOO_LATE = "it was not sent in time, because the broker is slow: retry it again"

Outcome = dict[tuple[str, str], str]
"""The error of each retry by (consumer group, message id). "": the retry succeeded."""


class _Retry(NamedTuple):
    """A retry of dead letters of one group; see `SqlDeadLetters.begin`."""

    group: str
    number: str
    actor: str
    why: str
    work: str


class DeadLetterActions:
    """Dead letters at the broker, with their state in the application's databases.

    Args:
        databases: the application's databases by name. If there are none, the state of a dead
            letter is unknown, and no audit is written.
        name_servers: "host:port"; several are joined by ";".
        settings: the client settings, such as the credentials of the cluster.
    """

    def __init__(
        self,
        databases: Mapping[str, Database],
        name_servers: str,
        settings: ClientSettings = DEFAULT_SETTINGS,
    ) -> None:
        self._databases = databases
        self._name_servers = name_servers
        self._settings = settings
        self._books = {name: _book(each) for name, each in databases.items()}

    def matching(
        self,
        wanted: DeadLetterFilter,
        *,
        everything: bool = False,
        enough: Callable[[list[DeadLetter]], bool] | None = None,
        newer_than: datetime | None = None,
    ) -> list[DeadLetter]:
        """Return the newest dead letter of each message and group, without its body.

        Args:
            wanted: the filter.
            everything: include those that were retried, voided or consumed since.
            enough: says whether the newest ones suffice, so that older ones need not be read.
                Default: all are read.
            newer_than: with `enough`, the time before which most of the wanted ones are. Default:
                now.

        Raises:
            ConfigurationError: when the name servers' address is invalid.
            RemoteError, Unavailable: when no broker or name server answers as needed.
        """
        with Browser(self._name_servers, self._settings) as browser:
            groups = _groups(browser, wanted.group)
            known: list[DeadLetter] = []
            for since in _windows(wanted, enough is None, newer_than):
                known = self._read(browser, groups, wanted, since)
                if not everything:
                    known = [each for each in known if each.status in _OPEN]
                if enough is not None and enough(known):
                    break
        return known

    def _read(
        self,
        browser: Browser,
        groups: Sequence[str],
        wanted: DeadLetterFilter,
        since: datetime | None,
    ) -> list[DeadLetter]:
        since_ms = int(since.timestamp() * 1000) if since else 0
        return self._with_states(
            [
                dead_letter
                for group in groups
                for dead_letter in newest(
                    DeadLetter(group, msgspec.structs.replace(message, body=b""))
                    for message in browser.messages(DEAD_LETTER_PREFIX + group, since_ms)
                )
                if wanted.matches(dead_letter)
            ]
        )

    def of_ids(self, message_ids: Sequence[str], group: str = "") -> list[DeadLetter]:
        """Return the newest dead letter of each message, for one group or ("") for all groups.

        Raises the same errors as `matching`.
        """
        with Browser(self._name_servers, self._settings) as browser:
            groups = _groups(browser, group)
            found = [
                DeadLetter(each, message)
                for each in groups
                for message_id in message_ids
                for message in browser.find(DEAD_LETTER_PREFIX + each, message_id)
            ]
            if not self._databases:
                return [_with_copy(browser, each) for each in newest(found)]
        return self._with_states(newest(found))

    def retry(
        self, dead_letters: Sequence[DeadLetter], *, actor: str, why: str, work: str = ""
    ) -> Outcome:
        """Send dead letters to their own groups again, with new attempts.

        `work`: identifies this work in the details of the audit; "": nothing does.

        What somebody else retries, or has retried since these were read, is left to them.

        What got no clear answer may have been sent: its claim runs on, and the line says so. If the
        process dies meanwhile, the other dead letters stay where they are, and their
        escalations stay open. You can retry them again after `CLAIM_SECONDS`.
        """
        outcome: Outcome = {}
        with Browser(self._name_servers, self._settings) as browser:
            for group, some in _parts(dead_letters):
                retry = _Retry(group, os.urandom(16).hex(), actor, why, work)
                ends = time.monotonic() + CLAIM_SECONDS / 2
                refusals, unclear = self._begun(retry, some), set[str]()
                for each in some:
                    if each.message.message_id in refusals:
                        continue
                    line, is_clear = (
                        _redelivered(browser, each)
                        if time.monotonic() < ends
                        else (_TOO_LATE, True)
                    )
                    refusals[each.message.message_id] = line
                    if not is_clear:
                        unclear.add(each.message.message_id)
                self._ended(retry, refusals, unclear)
                outcome |= {(group, each): line for each, line in refusals.items()}
        return outcome

    def _begun(self, retry: "_Retry", some: Sequence[DeadLetter]) -> dict[str, str]:
        """Write the intent into each database; return why some are left to somebody else."""
        seen = {
            each.message.message_id: None if each.state is None else each.state.retried
            for each in some
        }
        taken: dict[str, str] = {}
        for name, each in self._databases.items():
            now, book = each.clock.measured_now(), self._books[name]
            with one_at_a_time(each, f"{ACTION} {retry.group}") as connection:
                free = {one: at for one, at in seen.items() if one not in taken}
                taken |= book.taken(connection, retry.group, free, now)
                mine = [one for one in free if one not in taken]
                book.begin(
                    *(connection, retry.group, mine),
                    retry_id=retry.number,
                    actor=retry.actor,
                    why=retry.why,
                    now=now,
                    work=retry.work,
                )
                refused = {(retry.group, one): taken[one] for one in free if one in taken}
                book.refuse(connection, refused, actor=retry.actor, why=retry.why, now=now)
        return taken

    def _ended(
        self, retry: "_Retry", refusals: Mapping[str, str], unclear: Collection[str]
    ) -> None:
        handed = [each for each, why in refusals.items() if not why]
        unsent = {each: why for each, why in refusals.items() if why and each not in unclear}
        maybe = {each: refusals[each] for each in unclear}
        detail = intent(retry.group, retry.why, retry.work)
        for name, each in self._databases.items():
            now, book = each.clock.now(), self._books[name]
            with each.forgiving_engine.begin() as connection:
                book.done(connection, retry.group, handed, retry_id=retry.number, now=now)
                book.release(connection, unsent, retry_id=retry.number, detail=detail)
                book.note_unclear(connection, maybe, retry_id=retry.number, detail=detail)

    def still_open(self, dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Return those that nobody has retried, voided or consumed meanwhile."""
        return [each for each in self._with_states(dead_letters) if each.status in _OPEN]

    def note_refused(self, refused: Outcome, *, actor: str, why: str) -> None:
        """Write refused retries to the audit of the first database."""
        for name, each in itertools.islice(self._databases.items(), 1):
            now = each.clock.measured_now()
            with each.forgiving_engine.begin() as connection:
                self._books[name].refuse(connection, refused, actor=actor, why=why, now=now)

    def _with_states(self, dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Return dead letters with their state. At most one database has their consume log."""
        if not self._databases:
            return list(dead_letters)
        known = []
        for group, some in _parts(dead_letters):
            ids = [each.message.message_id for each in some]
            states = [self._states(name, group, ids) for name in self._databases]
            known += [
                msgspec.structs.replace(
                    each, state=both([one[each.message.message_id] for one in states])
                )
                for each in some
            ]
        return known

    def _states(self, name: str, group: str, ids: Sequence[str]) -> dict[str, DeadLetterState]:
        with self._databases[name].engine.begin() as connection:
            return self._books[name].states(connection, group, ids)


def of_application(
    dead_letters: Sequence[DeadLetter], groups: Collection[str] | None
) -> list[DeadLetter]:
    """Return those of an application: of its groups, or of a message with a stub in its databases.

    Args:
        dead_letters: any.
        groups: the groups of the application; None: return all.
    """
    if groups is None:
        return list(dead_letters)
    return [
        each
        for each in dead_letters
        if each.group in groups or (each.state is not None and each.state.has_stub)
    ]


def _windows(
    wanted: DeadLetterFilter, is_whole: bool, newer_than: datetime | None
) -> list[datetime | None]:
    """Return since when dead letters are read, each time further back; None: all."""
    if is_whole:
        return [wanted.since]
    until = newer_than or datetime.now(UTC)
    times = [until - each for each in _BACK]
    first = wanted.since
    return [*(each for each in times if first is None or each > first), first]


def _groups(browser: Browser, group: str) -> list[str]:
    """Return the groups that have dead letters. `group` "": all; otherwise only this group."""
    return [each for each in browser.dead_letter_groups() if group in {"", each}]


def _book(database: Database) -> SqlDeadLetters:
    audit = SqlAudit(database.audit)
    return SqlDeadLetters(
        database.stubs, database.logs, escalations_of(database), audit, database.dialect
    )


def _parts(dead_letters: Sequence[DeadLetter]) -> Iterator[tuple[str, list[DeadLetter]]]:
    """Yield dead letters by consumer group, at most `AT_ONCE` together."""
    by_group: dict[str, list[DeadLetter]] = defaultdict(list)
    for dead_letter in dead_letters:
        by_group[dead_letter.group].append(dead_letter)
    for group, own in by_group.items():
        for at in range(0, len(own), AT_ONCE):
            yield group, own[at : at + AT_ONCE]


def _with_copy(browser: Browser, dead_letter: DeadLetter) -> DeadLetter:
    """Return a dead letter with its retry, if the broker has sent it to its group since."""
    copies = browser.find(RETRY_PREFIX + dead_letter.group, dead_letter.message.message_id)
    newest_ms = max((each.store_time_ms for each in copies), default=0)
    if newest_ms <= dead_letter.message.store_time_ms:
        return dead_letter
    state = DeadLetterState(retried=datetime.fromtimestamp(newest_ms / 1000, UTC))
    return msgspec.structs.replace(dead_letter, state=state)


def _redelivered(browser: Browser, dead_letter: DeadLetter) -> tuple[str, bool]:
    """Return the error of a retry ("": none), and whether it is clear that it was sent or not."""
    try:
        browser.redeliver(dead_letter.group, dead_letter.message)
    except (RemoteError, NoRoute) as error:
        return str(error) or type(error).__name__, True
    except ReliableMQError as error:
        return f"{str(error) or type(error).__name__}{_UNCLEAR}", False
    return "", True
