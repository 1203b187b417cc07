"""The facts of the decision table, for each message and consumer group. Pure.

Receives traces, their rows and the world. Returns one code for each row and fact: the index of its
value in `verdict.FACTS`. docs/explanation/reconciliation.md explains how each fact is found.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import numpy as np

from reliable_mq.reconcile.brokers.log_roles import DEAD, RETRY, RETRY_DELAYED
from reliable_mq.reconcile.judgement.events import (
    CONSUMED,
    DUPLICATE,
    LOG,
    NO_TIME,
    SKIPPED,
    STUB,
    TELLS,
)
from reliable_mq.reconcile.judgement.forged_pairs import ForgedPairs, consumed_others, pairs_of
from reliable_mq.reconcile.judgement.spread_rows import ROLE, SpreadRows
from reliable_mq.reconcile.judgement.traces import (
    NO_NUMBER,
    NameColumn,
    Traces,
    firsts_of,
    is_in,
    spread,
    values_at,
)
from reliable_mq.reconcile.judgement.verdict import FACTS
from reliable_mq.reconcile.judgement.world import QueueOffsets, World, microseconds

_CODE = {name: {value: code for code, value in enumerate(FACTS[name])} for name in FACTS}
# Indexed by the state of a stub. The last value, at index -1, is for "no stub". A status that we
# never write counts as unconfirmed.
_STATES = ("unconfirmed", "confirmed", "voided", "tombstone", "unconfirmed", "none")
_STUB = np.array([_CODE["stub"][value] for value in _STATES], np.uint8)


@dataclass(frozen=True)
class Case:
    """The traces with their rows, and the world of the judgement.

    `born` is the time of each message, in microseconds since the epoch. `unseen` is the number of
    its first deliveries that are not in the traces.
    """

    traces: Traces
    rows: SpreadRows
    world: World
    progress: QueueOffsets
    begins: QueueOffsets
    born: np.ndarray
    unseen: np.ndarray

    @cached_property
    def stores(self) -> NameColumn:
        """The store with the log of each event's broker."""
        return self.world.stores(self.traces.names["broker"])

    @cached_property
    def topic(self) -> np.ndarray:
        """The topic of each row, as a code."""
        topics: np.ndarray = self.rows.topic[self.rows.message]
        return topics

    @cached_property
    def stub(self) -> np.ndarray:
        """The stub of each row."""
        stubs: np.ndarray = self.rows.stub[self.rows.message]
        return stubs

    @cached_property
    def is_consumed(self) -> np.ndarray:
        """Whether each row's consume log says CONSUMED."""
        is_consumed: np.ndarray = values_at(self.traces["state"], self.rows.log, -1) == CONSUMED
        return is_consumed

    @cached_property
    def is_skipped(self) -> np.ndarray:
        """Whether a person let each row's group skip the message."""
        is_skipped: np.ndarray = (values_at(self.traces["marks"], self.rows.log, 0) & SKIPPED) != 0
        return is_skipped

    @cached_property
    def pairs(self) -> ForgedPairs:
        """Records that match their stub, and other records of the same id."""
        return pairs_of(self.traces, self.rows)

    @cached_property
    def second_effect(self) -> np.ndarray:
        """See `second_effects`."""
        return second_effects(self)

    def done(self, rows: np.ndarray, events: np.ndarray) -> np.ndarray:
        """Return the committed offset of each row's group in the queue of the event beside it.

        `NO_TIME`: the group has no offset there.
        """
        queues = values_at(self.traces["queue_id"], events, int(NO_NUMBER))
        names = [
            (self.stores, values_at(self.stores.codes, events, 0)),
            (self.rows.groups, self.rows.group[rows]),
            (self.traces.names["topic"], self.topic[rows]),
        ]
        return self.progress.of(names, queues)

    @cached_property
    def is_sent(self) -> np.ndarray:
        """Whether each row's stub has the position of an acknowledged send."""
        is_sent: np.ndarray = (
            values_at(self.traces["queue_offset"], self.stub, int(NO_TIME)) != NO_TIME
        )
        return is_sent

    def place(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return store, queue and offset of each row, from its stub or else from its consume log.

        The stub of a delayed message does not have them, because the broker's reply has the
        position in the delay queue.
        """
        due = values_at(self.traces["until"], self.stub, int(NO_TIME))
        event = np.where(self.is_sent & (due == NO_TIME), self.stub, self.rows.log)
        return (
            values_at(self.stores.codes, event, 0),
            values_at(self.traces["queue_id"], event, int(NO_NUMBER)),
            values_at(self.traces["queue_offset"], event, int(NO_TIME)),
        )

    def is_expired(self) -> np.ndarray:
        """Say for each row whether its message must have left the log, if it was delivered.

        This follows from its queue offset. For a delayed message it follows from the time before
        which it cannot have been stored in its queue.
        """
        store, queue, offset = self.place()
        topics = self.traces.names["topic"]
        begin = self.begins.of([(self.stores, store), (topics, self.topic)], queue)
        due = values_at(self.traces["until"], self.stub, int(NO_TIME))
        oldest = self.world.oldest_in(self.stores)[values_at(self.stores.codes, self.stub, 0)]
        slack = self.world.slack // timedelta(microseconds=1)
        is_before = self.is_sent & (due != NO_TIME) & (due < oldest + slack)
        is_expired: np.ndarray = np.where(offset != NO_TIME, offset < begin, is_before)
        return is_expired


def facts_of(case: Case) -> Mapping[str, np.ndarray]:
    """Return the facts by name; each has one code for each row."""
    rows, traces = case.rows, case.traces
    everyone = np.bincount(
        rows.message[rows.is_required & case.is_consumed], minlength=len(rows.start)
    )
    is_everyone = (rows.required > 0) & (everyone == rows.required)
    managed = is_in(traces.names["topic"], case.world.managed)[case.topic]
    return {
        "stub": _STUB[values_at(traces["state"], case.stub, -1)],
        "group": np.where(
            rows.is_required,
            _CODE["group"]["required"],
            np.where(rows.group == 0, _CODE["group"]["ack"], _CODE["group"]["extra"]),
        ),
        "position": _codes("position", ("unknown", "known"))[case.is_sent.astype(np.int8)],
        "record": _record(case),
        "progress": _progress(case),
        "retry": _retry(case),
        "log": _log(case),
        "everyone": _codes("everyone", ("no", "yes"))[is_everyone[rows.message].astype(np.int8)],
        "age": _codes("age", ("old", "fresh"))[_is_fresh(case)[rows.message].astype(np.int8)],
        "topic": _codes("topic", ("unmanaged", "managed"))[managed.astype(np.int8)],
    }


def _codes(fact: str, values: tuple[str, ...]) -> np.ndarray:
    return np.array([_CODE[fact][value] for value in values], np.uint8)


def _record(case: Case) -> np.ndarray:
    rows, traces, code = case.rows, case.traces, _CODE["record"]
    due = rows.delays[traces["until"][rows.delays] >= case.world.late]

    found = np.full(len(rows.start), code["absent"], np.uint8)
    found[traces.message[rows.stranded]] = code["stranded"]
    found[traces.message[rows.delays]] = code["overdue"]
    found[traces.message[due]] = code["delayed"]
    found[traces.message[rows.firsts]] = code["present"]
    pairs = case.pairs
    found[pairs.has_other] = code["differs"]
    found[pairs.has_other & pairs.has_right] = code["forged"]
    record = found[rows.message]
    is_absent = record == code["absent"]
    record = np.where(is_absent & case.is_expired(), code["expired"], record)
    return np.where(is_absent & _is_unknown(case), code["unknown"], record).astype(np.uint8)


def _is_unknown(case: Case) -> np.ndarray:
    """Say for each row whether its message may be in the log of a broker that was not reached."""
    missing = case.world.missing
    if not missing:
        return np.zeros(len(case.rows), bool)
    brokers = case.traces.names["broker"]
    named = values_at(brokers.codes, np.where(case.is_sent, case.stub, case.rows.log), -1)
    is_missing: np.ndarray = is_in(brokers, missing)[named] | (named < 0)
    return is_missing


def _progress(case: Case) -> np.ndarray:
    """Say for each row whether its group has passed every first delivery."""
    rows, code = case.rows, _CODE["progress"]
    messages = case.traces.message[rows.firsts]
    counts = rows.counts[messages]
    of_row = spread(rows.start[messages], counts)
    first = np.repeat(rows.firsts, counts)
    done = np.maximum(case.done(of_row, first), 0)
    is_behind = rows.first[rows.message] < 0
    is_behind[of_row[done <= case.traces["queue_offset"][first]]] = True
    return np.where(is_behind, code["behind"], code["passed"]).astype(np.uint8)


def _retry(case: Case) -> np.ndarray:
    rows, traces, code = case.rows, case.traces, _CODE["retry"]
    found = np.where(_gave_up(case), code["dead"], code["none"]).astype(np.uint8)
    if len(rows.copies) == 0:
        return found
    role, row = traces["state"][rows.copies], rows.row_of_copy
    is_retry, is_later = role == ROLE[RETRY], role == ROLE[RETRY_DELAYED]
    retries, later = rows.copies[is_retry], rows.copies[is_later]
    names = [
        (case.stores, case.stores.codes[retries]),
        (rows.groups, rows.group[row[is_retry]]),
        (traces.names["queue_topic"], traces.names["queue_topic"].codes[retries]),
    ]
    done = np.maximum(case.progress.of(names, traces["queue_id"][retries]), 0)
    found[row[is_retry][traces["queue_offset"][retries] >= done]] = code["waiting"]
    is_next = ~_have_retries(case, is_retry, is_later)
    is_next &= traces["until"][later] >= case.world.late
    found[row[is_later][is_next]] = code["waiting"]
    is_dead = role == ROLE[DEAD]
    is_last = _is_behind_all_firsts(case, rows.copies[is_dead])
    is_last &= _is_behind_retries(case, is_dead)
    found[row[is_dead][is_last]] = code["dead"]
    found[_gave_up(case)] = code["dead"]
    return found


def _gave_up(case: Case) -> np.ndarray:
    """Say for each row whether, by the stub, its group has given the message up.

    The stub still says so when the dead letter has left the log, until a person retries it.
    """
    rows, names = case.rows, case.traces.names["reason"]
    told = values_at(names.codes, case.stub, -1)
    gave_up = np.zeros(len(rows), bool)
    for code in np.unique(told[told >= 0]).tolist():
        groups = [rows.groups.code(name) for name in names.values[code].split(",")]
        gave_up |= (told == code) & np.isin(rows.group, groups)
    return gave_up


def _have_retries(case: Case, is_retry: np.ndarray, is_later: np.ndarray) -> np.ndarray:
    """Say for each delayed copy whether its retry is already in the same log, after the copy.

    A retry has the same attempt number as its delayed copy. The number alone is not enough: if a
    message is sent again, its attempts start again at 0.
    """
    rows, traces = case.rows, case.traces
    store, tries = case.stores.codes[rows.copies], traces["tries"][rows.copies]
    attempts = np.column_stack((rows.row_of_copy, store, tries)).astype(np.int64)
    _, attempt = np.unique(attempts, axis=0, return_inverse=True)
    attempt, place = attempt.reshape(-1), traces["log_offset"][rows.copies]
    newest = np.full(int(attempt.max(initial=-1)) + 1, NO_TIME)
    np.maximum.at(newest, attempt[is_retry], place[is_retry])
    became: np.ndarray = newest[attempt[is_later]] > place[is_later]
    return became


def _is_behind_retries(case: Case, is_dead: np.ndarray) -> np.ndarray:
    """Say for each dead letter whether no later attempt is in the same log.

    A person may retry a dead letter: its group then gets it again, as a retry.
    """
    rows, place = case.rows, case.traces["log_offset"][case.rows.copies]
    lane = np.column_stack((rows.row_of_copy, case.stores.codes[rows.copies])).astype(np.int64)
    _, number = np.unique(lane, axis=0, return_inverse=True)
    number = number.reshape(-1)
    newest = np.full(int(number.max(initial=-1)) + 1, NO_TIME)
    np.maximum.at(newest, number[~is_dead], place[~is_dead])
    is_behind: np.ndarray = newest[number[is_dead]] < place[is_dead]
    return is_behind


def _is_behind_all_firsts(case: Case, copies: np.ndarray) -> np.ndarray:
    """Say for each copy whether its message was not sent again later.

    Offsets in the logs of two brokers cannot be compared, but store times can.
    """
    rows, traces = case.rows, case.traces
    firsts = rows.firsts[np.argsort(traces.message[rows.firsts], kind="stable")]
    message = traces.message[firsts]
    begin = np.searchsorted(message, traces.message[copies])
    counts = np.searchsorted(message, traces.message[copies], "right") - begin
    first = firsts[spread(begin, counts)]
    number = np.repeat(np.arange(len(copies)), counts)
    copy = copies[number]
    is_before = np.where(
        case.stores.codes[copy] == case.stores.codes[first],
        traces["log_offset"][copy] < traces["log_offset"][first],
        traces["seen"][copy] < traces["seen"][first],
    )
    is_behind = np.ones(len(copies), bool)
    is_behind[number[is_before]] = False
    return is_behind


def _log(case: Case) -> np.ndarray:
    rows, traces, code, log = case.rows, case.traces, _CODE["log"], case.rows.log
    until = values_at(traces["until"], log, int(NO_TIME))
    is_live = until > case.world.past
    received = np.where(is_live, code["live"], code["dead"])
    found = np.where(case.is_consumed, code["consumed"], received)
    found = np.where(log < 0, code["none"], found).astype(np.uint8)
    consumed = np.where(case.is_consumed, log, -1)
    found[consumed_others(traces, rows, case.stores, case.pairs, consumed)] = code["other"]
    found[case.second_effect >= 0] = code["twice"]
    # What a person let be skipped had no effect: that does not contradict a stub without one.
    stub, ended = _STUB[values_at(traces["state"], case.stub, -1)], _CODE["stub"]
    has_ended = (stub == ended["voided"]) | (stub == ended["tombstone"])
    found[case.is_skipped & has_ended] = code["none"]
    return found


def second_effects(case: Case) -> np.ndarray:
    """Return for each row the consume log of a second effect, or -1.

    An identical row in two databases comes from a copied table: it is no second effect.
    """
    rows, traces = case.rows, case.traces
    is_effect = (traces["kind"][rows.logs] == LOG) & (traces["state"][rows.logs] == CONSUMED)
    is_effect &= (traces["marks"][rows.logs] & DUPLICATE) == 0
    effects, row = rows.logs[is_effect], rows.row_of_log[is_effect]
    if np.bincount(row, minlength=1).max() < 2:
        return np.full(len(rows), -1)
    first = firsts_of(row, len(rows), traces["seen"][effects], effects)[row]
    is_other = traces["seen"][effects] != traces["seen"][first]
    is_other |= traces["changed"][effects] != traces["changed"][first]
    others = effects[is_other]
    return firsts_of(row[is_other], len(rows), traces["seen"][others], others)


def second_stubs(case: Case) -> np.ndarray:
    """Return for each message the stub of another message with the same id, or -1.

    In one database an id is unique, but two databases can have the same one. An identical row in
    two databases comes from a copied table: it is no second message.
    """
    rows, traces = case.rows, case.traces
    stubs = np.flatnonzero(traces["kind"] == STUB)
    if len(stubs) == np.count_nonzero(rows.stub >= 0):
        return np.full(len(rows.start), -1)
    message, created = traces.message[stubs], traces["seen"][stubs]
    is_other = created != traces["seen"][rows.stub[message]]
    return firsts_of(message[is_other], len(rows.start), created[is_other], stubs[is_other])


def _is_fresh(case: Case) -> np.ndarray:
    """Say for each message whether it is too young to be judged, or changed a moment ago."""
    rows, traces, world = case.rows, case.traces, case.world
    created = values_at(traces["seen"], rows.stub, int(NO_TIME))
    wanted = values_at(traces["until"], rows.stub, int(NO_TIME))
    is_fresh: np.ndarray = (
        np.maximum(np.where(rows.stub >= 0, created, case.born), wanted) > world.late
    )
    newest = values_at(traces["changed"], rows.stub, int(NO_TIME))
    for kind in ("seen", "changed"):
        np.maximum.at(newest, traces.message[rows.logs], traces[kind][rows.logs])
    np.maximum.at(newest, traces.message[rows.records], traces["seen"][rows.records])
    is_fresh |= newest >= microseconds(world.moving_since)
    # A confirmation from another database takes longer.
    telling = rows.logs[(traces["marks"][rows.logs] & TELLS) != 0]
    is_fresh[traces.message[telling[traces["changed"][telling] > world.late]]] = True
    return is_fresh
