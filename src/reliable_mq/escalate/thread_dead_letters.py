"""The dead letters of an application: found at the broker, retried in step with its databases.

The broker takes part in no transaction, so a retry has one before it is asked and one after, in
each database; `sql_dead_letters` says what each of them leaves to whoever comes after a death.
"""

import itertools
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

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
from reliable_mq.names import DEAD_LETTER_PREFIX

AT_ONCE = 200
"""Letters of one transaction."""
_OPEN = ("waiting", "unknown")

Outcome = dict[tuple[str, str], str]
"""Why a letter was not handed over, by (consumer group, message id); "": it was."""


class DeadLetterActions:
    """Dead letters at a broker, as an application's databases know them.

    Args:
        databases: the application's, by name; none: what became of letters is unknown, and what is
            done is noted nowhere.
        name_servers: "host:port", several joined by ";".
        settings: who we are to a cluster that is closed.
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

    def that_fit(self, wanted: DeadLetterFilter, *, everything: bool = False) -> list[DeadLetter]:
        """Return the newest letter of each message and group that fits, without its body.

        Args:
            wanted: which.
            everything: also those that were retried, voided or consumed since.

        Raises:
            ConfigurationError: when the name servers' address does not read.
            RemoteError, Unavailable: when nobody tells.
        """
        with Browser(self._name_servers, self._settings) as browser:
            groups = _groups(browser, wanted.group)
            since_ms = int(wanted.since.timestamp() * 1000) if wanted.since else 0
            letters = [
                letter
                for group in groups
                for letter in newest(
                    DeadLetter(group, msgspec.structs.replace(message, body=b""))
                    for message in browser.messages(DEAD_LETTER_PREFIX + group, since_ms)
                )
                if wanted.fits(letter)
            ]
        known = self._with_states(letters)
        return known if everything else [each for each in known if each.standing in _OPEN]

    def of_ids(self, message_ids: Sequence[str], group: str = "") -> list[DeadLetter]:
        """Return the newest letter of each message, of one group or of all that have one.

        Raises as `that_fit` does.
        """
        with Browser(self._name_servers, self._settings) as browser:
            groups = _groups(browser, group)
            found = [
                DeadLetter(each, message)
                for each in groups
                for message_id in message_ids
                for message in browser.find(DEAD_LETTER_PREFIX + each, message_id)
            ]
        return self._with_states(newest(found))

    def retry(self, letters: Sequence[DeadLetter], *, actor: str, why: str) -> Outcome:
        """Let letters come to their groups again, and to no others, with new attempts.

        Whoever dies meanwhile leaves letters that were not handed over where they are, and their
        escalations open; they may be retried again.
        """
        outcome: Outcome = {}
        with Browser(self._name_servers, self._settings) as browser:
            for group, some in _parts(letters):
                ids = [each.message.message_id for each in some]
                retry_id = os.urandom(16).hex()
                for name, each in self._databases.items():
                    now = each.clock.measured_now()
                    with each.forgiving_engine.begin() as connection:
                        self._books[name].begin(
                            connection, group, ids, retry_id=retry_id, actor=actor, why=why, now=now
                        )
                refusals = {each.message.message_id: _handed_back(browser, each) for each in some}
                handed = [each for each in ids if not refusals[each]]
                for name, each in self._databases.items():
                    now = each.clock.now()
                    with each.forgiving_engine.begin() as connection:
                        self._books[name].done(
                            connection, group, handed, retry_id=retry_id, now=now
                        )
                outcome |= {(group, each): refusals[each] for each in ids}
        return outcome

    def note_refused(self, refused: Outcome, *, actor: str, why: str) -> None:
        """Write down who asked for letters that are not retried, and why: in the first database."""
        for name, each in itertools.islice(self._databases.items(), 1):
            now = each.clock.measured_now()
            with each.forgiving_engine.begin() as connection:
                self._books[name].refuse(connection, refused, actor=actor, why=why, now=now)

    def _with_states(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Return letters with what is known of them; in one database at most is their log."""
        if not self._databases:
            return list(letters)
        known = []
        for group, some in _parts(letters):
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


def _groups(browser: Browser, group: str) -> list[str]:
    """Return the groups that have dead letters, of one or of all: a healthy group has none."""
    return [each for each in browser.dead_letter_groups() if group in {"", each}]


def _book(database: Database) -> SqlDeadLetters:
    audit = SqlAudit(database.audit)
    return SqlDeadLetters(
        database.stubs, database.logs, escalations_of(database), audit, database.dialect
    )


def _parts(letters: Sequence[DeadLetter]) -> Iterator[tuple[str, list[DeadLetter]]]:
    """Yield letters by consumer group, a few hundred at a time."""
    by_group: dict[str, list[DeadLetter]] = defaultdict(list)
    for letter in letters:
        by_group[letter.group].append(letter)
    for group, own in by_group.items():
        for at in range(0, len(own), AT_ONCE):
            yield group, own[at : at + AT_ONCE]


def _handed_back(browser: Browser, letter: DeadLetter) -> str:
    try:
        browser.hand_back(letter.group, letter.message)
    except ReliableMQError as error:
        return str(error) or type(error).__name__
    return ""
