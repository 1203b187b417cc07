"""Statistics of the broker for `brokerStatus`, `clusterList` and `statsAll`.

The broker has one thread and no thread pools. For Apache's pool queues this module reports the
sends that wait for the log. Waiting pulls do not count.
Source: Apache RocketMQ `AdminBrokerProcessor.prepareRuntimeInfo`, `StoreStatsService`,
`DefaultMessageStore.getRuntimeInfo`.
"""

from collections.abc import Mapping
from math import log as logarithm

from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.statistics import Totals, WindowSum
from reliable_mq.broker_core.store.log_walk import record_at, store_time_ms
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import VERSION, Command, reply

# The capacities of Apache's pools. No request waits there; tools show the numbers.
_CAPACITIES = {
    "pullThreadPoolQueue": 100_000,
    "litePullThreadPoolQueue": 100_000,
    "queryThreadPoolQueue": 20_000,
    "ackThreadPoolQueue": 100_000,
}


def view_broker_stats_data(state: BrokerState, request: Request) -> Command:
    """VIEW_BROKER_STATS_DATA: one counter over the last minute, hour and day."""
    ext, now_ms = request.command.ext_fields, request.now_ms
    name, key = ext.get("statsName", "null"), ext.get("statsKey", "null")  # a Java null
    state.collect_statistics(now_ms)
    item = state.statistics.item(name, key)
    if item is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    minute, hour, day = (_sum(item.over(window, now_ms)) for window in range(3))
    body = {"statsDay": day, "statsHour": hour, "statsMinute": minute}
    return reply(request.command, body=fastjson.dumps(body))


def _sum(found: WindowSum) -> dict[str, float]:
    return {"avgpt": found.avgpt, "sum": found.sum, "tps": found.tps}


def get_broker_runtime_info(state: BrokerState, request: Request) -> Command:
    """GET_BROKER_RUNTIME_INFO."""
    state.collect_statistics(request.now_ms)
    table = {
        **_puts_and_gets(state, request.now_ms),
        **_store(state),
        **_queues(state, request.now_ms),
        **_delays(state),
        **_tables_of_master(state, request.now_ms),
    }
    return reply(request.command, body=fastjson.dumps({"table": table}))


def _tables_of_master(state: BrokerState, now_ms: int) -> dict[str, str]:
    """Return what a slave knows of its master's tables; the names are ours."""
    if not state.config.is_slave:
        return {}
    tables = state.master_tables
    return {
        "masterTablesAgeSeconds": f"{tables.age_seconds(now_ms, state.started_ms):.0f}",
        "masterTablesFailure": tables.failure,
        **_standing_in(state),
    }


def _puts_and_gets(state: BrokerState, now_ms: int) -> dict[str, str]:
    counts, started_ms = state.statistics, state.started_ms
    put = max(counts.totals.put, 1)  # as in Apache: a divisor for the average
    put_yesterday, got_yesterday = counts.yesterday_morning
    put_morning, got_morning = counts.this_morning
    put_now, got_now = counts.today()
    slowest_ms = str(counts.wait_ms_max)
    return {
        "bootTimestamp": str(started_ms),
        "runtime": _runtime(now_ms - started_ms),
        "brokerActive": "false" if state.config.is_slave else "true",
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": "V5_4_0",
        "putMessageEntireTimeMax": slowest_ms,
        "putMessageTimesTotal": str(put),
        "putMessageFailedTimes": str(state.pressure.refused),
        "putMessageSizeTotal": str(counts.put_size),
        "putMessageAverageSize": str(counts.put_size / put),
        "putMessageDistributeTime": "null",  # as in Apache's first minute
        "putLatency99": f"{state.pressure.wait_ms:.2f}",
        "putLatency999": f"{counts.wait_ms_max:.2f}",
        "getMessageEntireTimeMax": "0",
        "dispatchMaxBuffer": "0",
        **_rates(counts.rates()),
        "msgPutTotalYesterdayMorning": str(put_yesterday),
        "msgPutTotalTodayMorning": str(put_morning),
        "msgPutTotalTodayNow": str(put_now),
        "msgGetTotalYesterdayMorning": str(got_yesterday),
        "msgGetTotalTodayMorning": str(got_morning),
        "msgGetTotalTodayNow": str(got_now),
    }


def _rates(rates: list[Totals | None]) -> dict[str, str]:
    """Return each rate over 10, 60 and 600 seconds; empty if the broker has not run so long."""

    def texts(field: str) -> str:
        return " ".join("" if rate is None else str(getattr(rate, field) / 1000) for rate in rates)

    totals = [0.0 if rate is None else (rate.found + rate.missed) / 1000 for rate in rates]
    return {
        "putTps": texts("put"),
        "getFoundTps": texts("found"),
        "getMissTps": texts("missed"),
        "getTotalTps": " ".join(map(str, totals)),
        "getTransferredTps": texts("given"),
    }


def _store(state: BrokerState) -> dict[str, str]:
    store, log = state.store, state.store.log
    first = record_at(log, log.start)
    total, free = state.retention.capacity
    used = str(state.retention.used)
    epoch = {} if state.epoch is None else {"brokerEpoch": str(state.epoch)}  # our own
    return {
        **epoch,
        "commitLogDiskRatio": used,
        "consumeQueueDiskRatio": used,
        "commitLogDirCapacity": f"Total : {_readable(total)}, Free : {_readable(free)}.",
        "commitLogMaxOffset": str(log.end),
        "commitLogMinOffset": str(log.start),
        "dispatchBehindBytes": str(log.end - store.dispatched if log.end > log.start else 0),
        "earliestMessageTimeStamp": str(store_time_ms(first) if first else -1),
        "pageCacheLockTimeMills": str(state.pressure.wait_ms),
        "remainHowManyDataToFlush": _readable(log.end - log.durable),
        "remainTransientStoreBufferNumbs": "2147483647",  # as in Apache without this pool
        "startAcceptSendRequestTimeStamp": "0",
        # Our own field: how much longer files are kept because the clock jumped.
        "filesHeldSeconds": f"{state.retention.held_seconds:.0f}",
    }


def _queues(state: BrokerState, now_ms: int) -> dict[str, str]:
    table = {
        "sendThreadPoolQueueSize": str(state.pressure.waiting),
        "sendThreadPoolQueueCapacity": str(state.config.sends_waiting_max),
        "sendThreadPoolQueueHeadWaitTimeMills": str(state.pressure.wait_ms),
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": "100000",
        "timerReadBehind": str(state.timers.behind_ms(now_ms) // 1000),
        "timerOffsetBehind": str(0 if state.config.is_slave else state.timers.not_taken_up),
        "timerCongestNum": str(state.timers.counts.total),
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
    }
    for name, capacity in _CAPACITIES.items():
        table[f"{name}Size"] = "0"
        table[f"{name}Capacity"] = str(capacity)
        table[f"{name}HeadWaitTimeMills"] = "0"
    return table


def _delays(state: BrokerState) -> Mapping[str, str]:
    table = {}
    for level, offset in state.schedule.saved().items():
        queue = state.store.queue(SCHEDULE_TOPIC, level - 1)
        table[f"scheduleMessageOffset_{level}"] = f"{offset},{queue.end if queue else 0}"
    return table


def _runtime(milliseconds: int) -> str:
    minutes, seconds = divmod(max(milliseconds, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _readable(size: int) -> str:
    """Return a number of bytes in the format of Apache's tools: "1.5 KiB"."""
    if size < 1024:
        return f"{size} B"
    power = int(logarithm(size) / logarithm(1024))
    return f"{size / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"


def _standing_in(state: BrokerState) -> dict[str, str]:
    """Return whether a slave stands in for its master, and how many messages it has delivered."""
    stand_in = state.stand_in
    return {
        "standsIn": "true" if stand_in.is_acting else "false",
        "deliveredElsewhere": str(stand_in.delivered),
    }
