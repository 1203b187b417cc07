"""The dead letters of an application: list them at the broker, and retry them.

The broker takes part in no database transaction. So a retry has one transaction in each database
before it asks the broker, and one after. `sql_dead_letters` says what a crash in between leaves.
"""

import itertools
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from reliable_mq.client.administering.thread_browser import Browser
from reliable_mq.client.asyncio_client import DEFAULT_SETTINGS
from reliable_mq.client.settings import ClientSettings
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import ReliableMQError
from reliable_mq.escalate.dead_letter import DeadLetter, DeadLetterFilter, newest
from reliable_mq.escalate.sql_audit import SqlAudit
from reliable_mq.escalate.sql_dead_letters import DeadLetterState, SqlDeadLetters, both
from reliable_mq.escalate.sql_escalations import escalations_of
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

AT_ONCE = 200
"""Most dead letters of one transaction."""
_OPEN = ("waiting", "unknown")

Outcome = dict[tuple[str, str], str]
"""The error of each retry by (consumer group, message id). "": the retry succeeded."""


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

    def matching(self, wanted: DeadLetterFilter, *, everything: bool = False) -> list[DeadLetter]:
        """Return the newest dead letter of each message and group, without its body.

        Args:
            wanted: the filter.
            everything: include those that were retried, voided or consumed since.

        Raises:
            ConfigurationError: when the name servers' address is invalid.
            RemoteError, Unavailable: when no broker or name server answers as needed.
        """
        with Browser(self._name_servers, self._settings) as browser:
            groups = _groups(browser, wanted.group)
            since_ms = int(wanted.since.timestamp() * 1000) if wanted.since else 0
            dead_letters = [
                dead_letter
                for group in groups
                for dead_letter in newest(
                    DeadLetter(group, msgspec.structs.replace(message, body=b""))
                    for message in browser.messages(DEAD_LETTER_PREFIX + group, since_ms)
                )
                if wanted.matches(dead_letter)
            ]
        known = self._with_states(dead_letters)
        return known if everything else [each for each in known if each.status in _OPEN]

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

        If the process dies meanwhile, the other dead letters stay where they are, and their
        escalations stay open. You can retry them again.
        """
        outcome: Outcome = {}
        with Browser(self._name_servers, self._settings) as browser:
            for group, some in _parts(dead_letters):
                ids = [each.message.message_id for each in some]
                retry_id = os.urandom(16).hex()
                for name, each in self._databases.items():
                    now = each.clock.measured_now()
                    with each.forgiving_engine.begin() as connection:
                        self._books[name].begin(
                            *(connection, group, ids),
                            retry_id=retry_id,
                            actor=actor,
                            why=why,
                            now=now,
                            work=work,
                        )
                refusals = {each.message.message_id: _redelivered(browser, each) for each in some}
                handed = [each for each in ids if not refusals[each]]
                for name, each in self._databases.items():
                    now = each.clock.now()
                    with each.forgiving_engine.begin() as connection:
                        self._books[name].done(
                            connection, group, handed, retry_id=retry_id, now=now
                        )
                outcome |= {(group, each): refusals[each] for each in ids}
        return outcome

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


def _redelivered(browser: Browser, dead_letter: DeadLetter) -> str:
    try:
        browser.redeliver(dead_letter.group, dead_letter.message)
    except ReliableMQError as error:
        return str(error) or type(error).__name__
    return ""
