"""Whole tables of the broker, for tools that export them and for brokers that copy them.

Source: Apache RocketMQ `AdminBrokerProcessor`, `TopicConfigAndMappingSerializeWrapper`.
"""

from reliable_mq.broker_core.delivery.schedule import DelaySchedule
from reliable_mq.broker_core.names import system_topics
from reliable_mq.broker_core.requests.long_reply import long_reply
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.timer_checkpoint import TimerCheckpoint
from reliable_mq.broker_core.topics import DataVersion
from reliable_mq.host_and_port import host_and_port_of
from reliable_mq.limits import FRAME_SIZE_MAX, OFFSETS_ASKED_MAX
from reliable_mq.wire import fastjson
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import GroupPageHeader, TopicPageHeader
from reliable_mq.wire.long_frame import LONG_SIZE_MIN
from reliable_mq.wire.peer_texts import read_json_as

_BODY_MAX = FRAME_SIZE_MAX - 4_096  # the rest is for the header of the reply


OF_SLAVE = "progressOfSlave"
"""A field of ours: what a slave has done itself. Of offsets, those that its master lacks."""
DONE_BEFORE, DONE_MS = "timersDoneBefore", "timersDoneMs"
PAGE_MAX = 2_000
"""The maximum number of entries of a page; Apache's splitMetadataSize."""


def get_all_topic_config(state: BrokerState, request: Request) -> Command | None:
    """GET_ALL_TOPIC_CONFIG: one page if the request asks for a page, else the whole table."""
    header = TopicPageHeader.decode(request.command.ext_fields)
    topics = state.topics
    if header.is_whole:
        what, instead = f"{len(topics)} topics", "with topicSeq and maxTopicNum"
        _refuse_too_long(topics.size, what, instead)
        if topics.size > LONG_SIZE_MIN:
            long = topics.long_wrapped()
            _refuse_too_long(long.size, what, instead)
            return long_reply(state, request, {"totalTopicNum": str(len(topics))}, long)
        body = topics.wrapped()
    else:
        begin, count = _page(header.data_version, topics.version, header.begin, header.count_max)
        body = topics.wrapped(topics.page(begin, count))
    return reply(request.command, ext={"totalTopicNum": str(len(topics))}, body=body)


def get_all_subscription_group_config(state: BrokerState, request: Request) -> Command:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG: one page on request, else the whole table."""
    header = GroupPageHeader.decode(request.command.ext_fields)
    groups = state.groups
    if header.is_whole:
        what, instead = f"{len(groups)} groups", "with groupSeq and maxGroupNum"
        _refuse_too_long(groups.size, what, instead)
        body = groups.text().encode()
        _refuse_too_long(len(body), what, instead)
    else:
        begin, count = _page(header.data_version, groups.version, header.begin, header.count_max)
        body = groups.page(begin, count).encode()
    return reply(request.command, ext={"totalGroupNum": str(len(groups))}, body=body)


def _page(
    known: str | None, version: DataVersion, begin: int | None, count_max: int | None
) -> tuple[int, int]:
    """Return the first index of a page, and its number of entries.

    A request with an outdated version gets the first page, because entries may have moved. The
    reply contains the current version.
    """
    is_known = bool(known and not known.isspace()) and (
        read_json_as(known or "", DataVersion) == version
    )
    count = PAGE_MAX if count_max is None else min(max(count_max, 0), PAGE_MAX)
    return (max(begin or 0, 0) if is_known else 0), count


def get_all_consumer_offset(state: BrokerState, request: Request) -> Command:
    """GET_ALL_CONSUMER_OFFSET: the whole table, or a refusal; the protocol has no pages here."""
    offsets = state.offsets
    if state.config.is_slave and OF_SLAVE in request.command.ext_fields:
        body = state.commits_at_slave.as_offsets().text().encode()
        return reply(request.command, ext={OF_SLAVE: "true"}, body=body)
    if offsets.is_text_cheap(OFFSETS_ASKED_MAX):
        body = offsets.text().encode()
    elif offsets.has_all_rows:  # the rows of the last save: encoding all would block other clients
        body = offsets.dump_encoded().encode()
    else:
        raise RequestRefused(
            ResponseCode.SYSTEM_BUSY,
            "too many offsets changed since the last save; retry in some seconds",
        )
    instead = "group by group with GET_CONSUME_STATS"
    _refuse_too_long(len(body), "the offsets of all groups", instead)
    return reply(request.command, body=body)


def _refuse_too_long(size: int, what: str, instead: str) -> None:
    """Refuse to return a table that does not fit into a frame.

    Raises:
        RequestRefused: when it is too long.
    """
    if size > _BODY_MAX:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"{what} take {size} bytes and do not fit into a frame; ask for them {instead}",
        )


def get_all_delay_offset(state: BrokerState, request: Request) -> Command:
    """GET_ALL_DELAY_OFFSET: the delivery progress of each delay level."""
    schedule = DelaySchedule({1: 0}) if _knows_nothing(state) else state.schedule
    return reply(request.command, body=fastjson.dumps(schedule.to_json()))


def _knows_nothing(state: BrokerState) -> bool:
    """Whether a slave that may stand in must not say what was delivered; see `StandIn`."""
    config = state.config
    return config.is_slave and config.stands_in and not state.stand_in.knows_progress


def get_timer_check_point(state: BrokerState, request: Request) -> Command:
    """GET_TIMER_CHECK_POINT: how far timed messages are delivered and taken up."""
    timers, ext = state.timers, {}
    if _knows_nothing(state):
        return reply(request.command, body=TimerCheckpoint().to_wire())
    if state.config.is_slave and OF_SLAVE in request.command.ext_fields:
        known = timers.followed.progress()
        ext = {DONE_BEFORE: str(known.done_before), DONE_MS: str(known.done_ms)}
    return reply(request.command, ext=ext, body=timers.checkpoint(request.now_ms).to_wire())


def get_timer_metrics(state: BrokerState, request: Request) -> Command:
    """GET_TIMER_METRICS: how many timed messages of each topic wait."""
    return reply(request.command, body=state.timers.counts.text().encode())


def exchange_broker_ha_info(state: BrokerState, request: Request) -> Command | None:
    """EXCHANGE_BROKER_HA_INFO: where slaves find this master.

    A request that names a master is from one that comes back. A slave that may stand in for it
    gives way, and answers when its last delivery is known. Other slaves do nothing: they ask the
    name servers. Apache's slave would follow whoever it is told.
    """
    config, fields = state.config, request.command.ext_fields
    if config.is_slave and config.stands_in and "masterHaAddress" in fields:
        places = fields["masterHaAddress"], fields.get("masterAddress", "")
        for place in places:
            host_and_port_of(place)  # it raises for what is none
        state.stand_in.on_master(*places)
        connection, frame = request.connection.id, encode_answer(reply(request.command))
        state.stand_in.when_idle(lambda: state.reply(connection, frame))
        return None
    if config.is_slave or "masterHaAddress" in fields:
        return reply(request.command)
    ext = {
        "masterHaAddress": config.ha_address,
        "masterFlushOffset": str(state.store.log.durable),
        "masterAddress": config.address,
    }
    return reply(request.command, ext=ext)


def get_broker_ha_status(state: BrokerState, request: Request) -> Command:
    """GET_BROKER_HA_STATUS: how far the slaves are, or the master of a slave."""
    status = state.ha_status(state.store.log.end)
    return reply(request.command, body=fastjson.dumps(status))


def get_broker_epoch_cache(state: BrokerState, request: Request) -> Command:
    """GET_BROKER_EPOCH_CACHE: the epochs of the log; only brokers under a controller have them."""
    if state.controlled is None:
        return reply(
            request.command, ResponseCode.SYSTEM_ERROR, "this request only for controllerMode "
        )
    config = state.config
    found = {
        "brokerId": config.broker_id,
        "brokerName": config.broker_name,
        "clusterName": config.broker_cluster_name,
        "epochList": state.controlled.epochs(),
        "maxOffset": state.store.log.end,
    }
    return reply(request.command, body=fastjson.dumps(found))


def notify_broker_role_changed(state: BrokerState, request: Request) -> Command:
    """NOTIFY_BROKER_ROLE_CHANGED: a controller has elected; the broker asks the controller.

    What the request says is not believed: anybody could send it.
    """
    if state.controlled is not None:
        state.controlled.hint()
    return reply(request.command)


def notify_min_broker_id_change(state: BrokerState, request: Request) -> Command:
    """NOTIFY_MIN_BROKER_ID_CHANGE: a name server has lost or found a broker of this name.

    What the request says is not believed: a slave asks all its name servers.
    """
    state.stand_in.on_notice()
    return reply(request.command)


def reset_master_flush_offset(_state: BrokerState, request: Request) -> Command:
    """RESET_MASTER_FLUSH_OFFSET: for slaves only; a master does nothing."""
    return reply(request.command)


def get_system_topic_list(state: BrokerState, request: Request) -> Command:
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
    names = sorted(system_topics() | state.topics.broker_topics())
    return reply(request.command, body=fastjson.dumps({"topicList": names}))
