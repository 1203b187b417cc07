"""The open of a broker's state: files and tables are read, and the store is recovered.

Receives the configuration and the disk. Returns a state in which every table agrees with the log.
"""

from reliable_mq.access.access_settings import begin_access
from reliable_mq.access.access_table import PATH as ACCESS_PATH
from reliable_mq.broker_core.commits_at_slave import PATH as COMMITS_PATH
from reliable_mq.broker_core.config import SYNC_FLUSH, BrokerConfig
from reliable_mq.broker_core.config_loading import load_tables, warn_of_missing
from reliable_mq.broker_core.creators import PATH as CREATORS_PATH
from reliable_mq.broker_core.delivery import pop_orders, popped, schedule, topic_counts
from reliable_mq.broker_core.delivery.coming_back import settle_popped
from reliable_mq.broker_core.delivery.revival import Revival
from reliable_mq.broker_core.delivery.timers import Timers
from reliable_mq.broker_core.groups import PATH as GROUPS_PATH
from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.offsets import PATH as OFFSETS_PATH
from reliable_mq.broker_core.request_modes import PATH as MODES_PATH
from reliable_mq.broker_core.requests import audited
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store import retention
from reliable_mq.broker_core.store.deletions import PATH as DELETIONS_PATH
from reliable_mq.broker_core.store.disk import Disk, is_out_of_room
from reliable_mq.broker_core.store.message_index import IndexSizes
from reliable_mq.broker_core.store.message_store import ABORT_PATH, MessageStore
from reliable_mq.broker_core.store.progress import load_progress
from reliable_mq.broker_core.store.timer_store import TimerStore
from reliable_mq.broker_core.topics import PATH as TOPICS_PATH
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.record import pack_host

log = limited_log(__name__)


def made_state(config: BrokerConfig, disk: Disk, process_id: int) -> BrokerState:
    """Return the state of a broker over a disk, of which nothing is read yet."""
    store = MessageStore(
        disk,
        segment_size=config.segment_size,
        queue_file_size=config.queue_file_size,
        store_host=pack_host(config.broker_ip, config.listen_port),
        delays_ms=config.delays_ms,
        process_id=process_id,
        is_sync_flush=config.flush_disk_type == SYNC_FLUSH,
        index_sizes=IndexSizes(config.index_slots, config.index_entries)
        if config.is_indexed
        else None,
    )
    return BrokerState(config, store, _timers(config, disk, store))


def _timers(config: BrokerConfig, disk: Disk, store: MessageStore) -> Timers:
    files = TimerStore(
        disk,
        file_size=config.timer_file_size,
        precision_ms=config.timer_precision_ms,
        is_sync_flush=config.flush_disk_type == SYNC_FLUSH,
    )
    return Timers(
        store,
        files,
        precision_ms=config.timer_precision_ms,
        roll_slots=config.timer_roll_window,
        recalls_within_topic=config.authorizes,
        revival=Revival(config.broker_name),
    )


def open_state(state: BrokerState, disk: Disk, now_ms: int) -> None:
    """Recover the store and read the configuration files.

    Raises:
        StoreCorrupt: when a file has impossible content.
        ConfigurationError: when access control is on, and nobody could create users.
    """
    config = state.config
    loaders = {
        TOPICS_PATH: state.topics.load,
        GROUPS_PATH: state.groups.load,
        OFFSETS_PATH: state.offsets.load,
        DELETIONS_PATH: state.store.deletions.load,
        MODES_PATH: state.request_modes.load,
        schedule.PATH: state.schedule.load,
        topic_counts.TIMERS_PATH: state.timers.counts.load,
        retention.PATH: state.retention.load,
        ACCESS_PATH: state.access.load,
        CREATORS_PATH: state.creators.load,
        COMMITS_PATH: state.commits_at_slave.load,
        popped.PATH: state.popped.load,
        pop_orders.PATH: state.orders.load,
    }
    load_tables(disk, loaders)
    state.creators.settle()
    if config.authenticates and (made := begin_access(state.access, config.access)):
        save_now(disk, ACCESS_PATH, state.access.dump())
        audited.note_first_users(state, made, now_ms)
    warn_of_missing(disk, TOPICS_PATH)
    state.topics.create_system_topics(
        config.broker_cluster_name,
        config.broker_name,
        auto_create=config.auto_create_topic,
        queues=config.default_topic_queues,
        levels=len(config.delays_ms),
        trace_topic=config.trace_topic if config.has_trace_topic else "",
    )
    state.topics.version.advance(now_ms)
    state.topics_changed()
    state.started_ms = now_ms
    progress = load_progress(disk)
    deletions = state.store.deletions
    if not state.topics.is_ours:
        was_killed = disk.size_of(ABORT_PATH) >= 0
        deletions.note_others(disk, progress, was_killed=was_killed)
    state.store.open(progress)
    state.retention.begin(state.store.appender.last_time_ms)
    if deletions.settle(state.store.log.end):
        save_now(disk, DELETIONS_PATH, deletions.dump())
    state.store.log.read_ahead(is_wanted=config.data_read_ahead)
    state.schedule.settle(state.store)
    if config.is_slave:
        state.commits_at_slave.is_wanted = True
        if state.popped.noted is not None or state.popped.resets:  # of its time as a master
            state.popped = popped.Popped()
            save_now(disk, popped.PATH, state.popped.dump())
    else:
        state.timers.settle(now_ms)
        _end_commits_at_slave(state)
    state.offsets.settle(state.store)
    state.settled(0, None, now_ms)
    if not config.is_slave:  # it would store an op record that its master has not sent yet
        state.halves.recover(state.store, state.offsets, progress.log_end if progress else 0)
        timed = state.store.queue(TIMER_TOPIC, 0)
        if state.popped.lower_note(timed.end if timed else 0):
            save_now(disk, popped.PATH, state.popped.dump())
        settle_popped(state, now_ms)
    state.count_halves(now_ms)


def save_now(disk: Disk, path: str, text: str) -> None:
    """Write a file at once, if there is room."""
    try:
        disk.write_text(path, text)
    except OSError as error:
        if not is_out_of_room(error):
            raise
        broker_events.CONFIG_NOT_WRITTEN.log(log, path=path)


def _end_commits_at_slave(state: BrokerState) -> None:
    """A master's offsets are in its own table; those of its time as a slave are, too."""
    if state.commits_at_slave.end():
        state.files.change(COMMITS_PATH, state.commits_at_slave.dump)
