"""The figures of a broker for its metrics. Pure: it reads counters that the broker keeps anyway."""

from collections.abc import Iterator

from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.telemetry.families import Sample

_PREFIX = "reliable_mq_broker_"


def broker_samples(state: BrokerState, now_ms: int) -> Iterator[Sample]:
    """Yield the samples of the source "broker", except what only its sockets know.

    Counts of messages are at most a second old.
    """
    for name, value in _figures(state, now_ms):
        yield Sample(f"{_PREFIX}{name}", value)
    for what, count in state.quotas.refusals().items():
        yield Sample(f"{_PREFIX}quota_refusals_total", count, (what,))
    for what, count in state.creators.refused.items():
        yield Sample(f"{_PREFIX}refused_creations_total", count, (what,))
    yield from state.ha_figures(now_ms)


def _figures(state: BrokerState, now_ms: int) -> Iterator[tuple[str, float]]:
    counts, store = state.statistics, state.store
    log, retention = store.log, state.retention
    yield "messages_in_total", counts.totals.put
    yield "messages_out_total", counts.totals.given
    yield "in_bytes_total", counts.put_size
    yield "out_bytes_total", counts.got_size
    yield "refused_sends_total", state.pressure.refused
    yield "refused_access_total", state.guard.refused if state.guard is not None else 0
    yield "refused_pulls_total", state.pulls.refused
    yield "refused_timed_messages_total", state.timers.refused
    yield "waiting_sends", state.answers.waiting + state.answers.unsaved
    yield "waiting_pulls", len(state.pulls)
    yield "waiting_pops", len(state.pops.waiting) + len(state.notifications.waiting)
    yield "popped_messages", state.popped.total
    yield "popped_messages_gone_total", state.popped.gone
    yield "topics", len(state.topics)
    yield "consumer_groups", len(state.groups)
    yield "commit_log_start_bytes", log.start
    yield "commit_log_end_bytes", log.end
    yield "flush_lag_bytes", log.end - log.durable
    yield "dispatch_lag_bytes", log.end - store.dispatched
    yield "index_lag_bytes", store.index_lag
    yield "disk_used_ratio", retention.used
    yield "disk_free_bytes", retention.capacity[1]
    yield "timers_waiting_messages", _waiting_for_their_time(state)
    yield "timers_behind_seconds", state.timers.behind_ms(now_ms) / 1000
    yield "halves_waiting_messages", len(state.halves)


def _waiting_for_their_time(state: BrokerState) -> int:
    """Return how many messages wait for a time: timed ones, and those of the delay levels."""
    timed = state.timers.counts.total
    if not state.config.is_slave:  # a slave takes none up, and counts what its master says
        timed += state.timers.not_taken_up
    for level, offset in state.schedule.saved().items():
        queue = state.store.queue(SCHEDULE_TOPIC, level - 1)
        timed += queue.end - offset if queue is not None else 0
    return timed
