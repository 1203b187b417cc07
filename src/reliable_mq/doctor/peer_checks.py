"""Checks of Redis and the brokers: do they answer, and do they work as we need? Values only."""

import re
from typing import NamedTuple

from reliable_mq.client.administering.cluster_facts import ClusterFacts
from reliable_mq.client.sending.timed import TIMERS_SINCE
from reliable_mq.doctor.check_context import CheckContext, RedisFacts
from reliable_mq.doctor.finding import CheckFindings
from reliable_mq.errors import ConfigurationError, NotPermitted, ReliableMQError, WrongPeer
from reliable_mq.limits import DELAY_LEVELS_TEXT, REFUSES_SENDS_PERCENT, REMOVES_FILES_PERCENT
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from reliable_mq.settings import EMBEDDED

_READ_AND_WRITE = 6
_NEARLY_FULL_PERCENT = 5  # below a mark
_REFUSES = "diskSpaceWarningLevelRatio", *REFUSES_SENDS_PERCENT
_REMOVES = "diskSpaceCleanForciblyRatio", *REMOVES_FILES_PERCENT
_OF_BROKERS = frozenset(
    ("TBW102", "BenchmarkTest", "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT")
)
_DISK_RATIOS = "commitLogDiskRatio", "consumeQueueDiskRatio"


def redis(context: CheckContext, report: CheckFindings) -> None:
    """Redis answers in time and accepts writes. Without it, each message costs one more commit.

    No promise depends on it, so all findings are warnings.
    """
    if not context.redis:
        report.skip("no Redis is set: the database alone decides")
        return
    for each in context.redis:
        _redis(each, context.settings.redis_timeout_seconds, report)
    if not report.findings:
        slowest = max(each.answer_seconds for each in context.redis)
        count = len(context.redis)
        who = "it answers" if count == 1 else f"{count} primaries of a cluster answer"
        report.ok(f"{who} in {slowest * 1000:.1f} ms")


_WRONG_PASSWORD = ("Authentication required", "NOAUTH", "WRONGPASS", "invalid username-password")
"""What a server says of a password that is missing or wrong."""


def _redis(facts: RedisFacts, timeout: float, report: CheckFindings) -> None:
    who = f"Redis {facts.name}".rstrip()
    if facts.failure:
        remedy = "start it, or correct redis (RELIABLE_MQ_REDIS)"
        if any(each in facts.failure for each in _WRONG_PASSWORD):
            remedy = (
                "write its password into redis (RELIABLE_MQ_REDIS): redis://:password@host:6379/0"
            )
        report.warn(
            f"{who} cannot be reached: {facts.failure}",
            f"{remedy}; until then the database alone decides",
        )
        return
    if facts.role not in ("master", ""):
        report.warn(
            f"{who} is a {facts.role} and refuses leases",
            "give the address of the master, or of Sentinel; until then the database alone decides",
        )
    if facts.answer_seconds > timeout / 2:
        report.warn(
            f"{who} took {facts.answer_seconds:.2f} s to answer; after {timeout:g} s it counts as "
            "down",
            "move it closer to the application, or raise redis_timeout_seconds",
        )


def broker(context: CheckContext, report: CheckFindings) -> None:
    """Every broker answers, accepts writes, and acknowledges only messages on its disk (P3)."""
    cluster = context.cluster
    if cluster is None:
        if context.settings.broker.startswith(EMBEDDED):
            report.skip(context.cluster_failure)
        else:
            report.error(
                f"the cluster cannot be reached: {context.cluster_failure}",
                context.cluster_remedy
                or "start the name server and the broker, or correct broker (RELIABLE_MQ_BROKER)",
            )
        return
    if not cluster.brokers:
        report.error("the name servers know no broker", "start a broker, or look at its log")
    for each in cluster.brokers:
        if (refused := _MAY_NOT_ASK.search(each.failure)) is not None:
            user, resource = refused.groups()
            report.skip(
                f"broker {each.name} does not show its settings: user {user} has no right Get on "
                f"{resource}. No application needs it: let a person who has it run `doctor`, too"
            )
            continue
        if each.failure:
            remedies = (text for part, text in _REMEDIES.items() if part in each.failure)
            remedy = next(remedies, "look at its log")
            report.error(f"broker {each.name} at {each.address}: {each.failure}", remedy)
            continue
        _broker(each.name, each.config, each.runtime, report)
        _timers(each.name, each.config, each.runtime, context.settings.timer_range_seconds, report)
    if not report.findings:
        names = ", ".join(each.name for each in cluster.brokers)
        count = sum(_is_of_applications(topic, cluster) for topic in cluster.topics)
        report.ok(f"{names}, {count} topics of applications")


def _is_of_applications(topic: str, cluster: ClusterFacts) -> bool:
    """Return whether a topic is none that brokers have, and none of a group."""
    clusters = {each.config.get("brokerClusterName", "") for each in cluster.brokers}
    theirs = clusters | {f"{each}_REPLY_TOPIC" for each in clusters}
    theirs |= {each.name for each in cluster.brokers}
    return not (
        topic in theirs
        or topic in _OF_BROKERS
        or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX, "RMQ_SYS_", "rmq_sys_"))
    )


def groups(context: CheckContext, report: CheckFindings) -> None:
    """All members of a consumer group subscribe to the same topics.

    A broker shares the queues of each topic among all members, and knows one subscription of a
    group. So queues go to members that do not read them.
    """
    if context.cluster is None:
        report.skip("the brokers cannot be asked for the members")
        return
    for group, members in sorted(context.cluster.members.items()):
        sides: dict[frozenset[str], list[str]] = {}
        for client_id, topics in sorted(members.items()):
            sides.setdefault(topics, []).append(client_id)
        if len(sides) > 1:
            said = "; ".join(
                f"{_some(ids)} to {', '.join(sorted(topics)) or 'none'}"
                for topics, ids in sorted(sides.items(), key=lambda side: sorted(side[0]))
            )
            report.error(
                f"members of group {group} subscribe to different topics: {said}. Each takes "
                "queues of the others' topics, and does not read them",
                "give each application a group name of its own; during a deployment that changes "
                "topics, wait for its end",
            )
    if not report.findings:
        report.ok("the members of each group subscribe to the same topics")


def _some(ids: list[str]) -> str:
    more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
    return f"{ids[0]}{more}"


_MAY_NOT_ASK = re.compile(r"User:(\S+) has no permission to access (Cluster:\S+)")
# Parts of a broker's other refusals -> what to do.
_REMEDIES = {
    "is disabled": "an administrator enables it: reliable-mq access change USER --enable",
    "is not found": "correct access_key (RELIABLE_MQ_ACCESS_KEY); or an administrator adds the "
    "user: reliable-mq access add USER",
    "check signature failed": "correct secret_key (RELIABLE_MQ_SECRET_KEY)",
    "username cannot be null": "set access_key and secret_key (RELIABLE_MQ_ACCESS_KEY, "
    "RELIABLE_MQ_SECRET_KEY)",
}


def remedy_of(error: ReliableMQError) -> str:
    """Return what to do about an error of the whole cluster; "": start it."""
    text = str(error)
    if isinstance(error, WrongPeer):
        return "correct broker (RELIABLE_MQ_BROKER)"
    if isinstance(error, NotPermitted):
        return "correct access_key and secret_key (RELIABLE_MQ_ACCESS_KEY, RELIABLE_MQ_SECRET_KEY)"
    if "tls: cert" in text:
        return "correct tls_cert and tls_key (RELIABLE_MQ_TLS_CERT, RELIABLE_MQ_TLS_KEY)"
    if "tls: ca" in text:
        return "correct tls_ca (RELIABLE_MQ_TLS_CA)"
    if "certificate is refused" in text:
        return (
            "give the server another certificate; or correct tls_ca or tls_hostname "
            "(RELIABLE_MQ_TLS_CA, RELIABLE_MQ_TLS_HOSTNAME)"
        )
    if "closed the connection" in text or "sent an invalid command" in text:
        return (
            "if what listens there demands TLS, set tls_ca (RELIABLE_MQ_TLS_CA); else correct "
            "broker (RELIABLE_MQ_BROKER)"
        )
    return "correct that setting" if isinstance(error, ConfigurationError) else ""


def _timers(
    name: str,
    config: dict[str, str],
    runtime: dict[str, str],
    timer_range: float,
    report: CheckFindings,
) -> None:
    """A broker has timers, and accepts delays of up to `timer_range_seconds`."""
    version, reach = runtime.get("brokerVersion", ""), config.get("timerMaxDelaySec", "")
    is_old = version.isdecimal() and int(version) < TIMERS_SINCE
    if is_old or config.get("timerWheelEnable") == "false":
        why = "is older than 5.0" if is_old else "has timerWheelEnable=false"
        report.warn(
            f"broker {name} {why}, so it has no timers: delays are rounded up to the next of its "
            "delay levels",
            "a newer broker, or timerWheelEnable=true; else timer_range_seconds=7200",
        )
    elif reach.isdecimal() and int(reach) < timer_range:
        report.warn(
            f"broker {name} accepts delays of up to {reach} s, less than "
            f"timer_range_seconds={timer_range:g}: messages with a longer delay wait in the "
            "database",
            f"timerMaxDelaySec={timer_range:g} at the broker, or timer_range_seconds={reach}",
        )


def _broker(
    name: str, config: dict[str, str], runtime: dict[str, str], report: CheckFindings
) -> None:
    flush = config.get("flushDiskType", "SYNC_FLUSH")
    if flush != "SYNC_FLUSH":
        report.error(
            f"broker {name} acknowledges messages before they are on its disk ({flush}): a power "
            "failure can lose them (P3); only stubs that are unconfirmed are sent again",
            "flushDiskType=SYNC_FLUSH; or accept the risk, with replicas and a battery",
        )
    if _removes_unread(config):
        mark = _percent(config, *_REMOVES)
        report.warn(
            f"broker {name} removes unread messages when its disk is more than "
            f"{mark}% full, whatever fills it (P2); only stubs that are unconfirmed are sent "
            "again",
            "cleanFileForciblyEnable=false: a broker with a full disk then refuses sends",
        )
    permission = config.get("brokerPermission", "6")
    if permission.isdecimal() and int(permission) & _READ_AND_WRITE != _READ_AND_WRITE:
        report.error(
            f"broker {name} has permission {permission}: it does not serve both reads and writes",
            "brokerPermission=6",
        )
    levels = " ".join(config.get("messageDelayLevel", DELAY_LEVELS_TEXT).split())
    if levels != DELAY_LEVELS_TEXT:
        report.error(
            f"broker {name} has the delay levels {levels!r}: retries and delayed messages "
            "arrive at other times than requested",
            f"messageDelayLevel={DELAY_LEVELS_TEXT}",
        )
    if config.get("openToEverybody") == "true":
        report.warn(
            f"broker {name} is open to everybody: strangers reach it, and need no account and no "
            "certificate to read and delete every message",
            "listen at 127.0.0.1; or authenticationEnabled=true and authorizationEnabled=true; or "
            "tls.server.mode=enforcing and tls.server.need.client.auth=require",
        )
    _disk(name, config, runtime, report)


def _disk(
    name: str, config: dict[str, str], runtime: dict[str, str], report: CheckFindings
) -> None:
    """The disk of a broker has room. Above its two marks it removes files and refuses sends."""
    disk = disk_of(config, runtime)
    state = f"the disk of broker {name} is {disk.used}% full"
    if disk.now:
        report.error(f"{state}: it {' and '.join(disk.now)}", "make room")
    elif disk.soon:
        report.warn(f"{state}: it {' and '.join(disk.soon)}", "make room")


class BrokerDisk(NamedTuple):
    """The disk of a broker.

    `used`: in whole percent; 0: the broker does not know. `now`: what the broker does because the
    disk is full. `soon`: what it will do soon, and above which mark.
    """

    used: int
    now: tuple[str, ...]
    soon: tuple[str, ...]


def disk_of(config: dict[str, str], runtime: dict[str, str]) -> BrokerDisk:
    """Return how full the disk of a broker is, and what the broker does about it."""
    used = max(_used_percent(runtime, each) for each in _DISK_RATIOS)
    ends = [(_percent(config, *_REFUSES), "refuses sends")]
    if _removes_unread(config):
        ends.insert(0, (_percent(config, *_REMOVES), "removes files before their time"))
    now = [does for mark, does in ends if used > mark]
    soon = [f"{does} above {mark}%" for mark, does in ends if used > mark - _NEARLY_FULL_PERCENT]
    return BrokerDisk(used, tuple(now), tuple(soon))


def _used_percent(runtime: dict[str, str], name: str) -> int:
    """Return how full a disk is, in whole percent. 0: the broker does not know."""
    try:
        return max(0, round(float(runtime.get(name, "")) * 100))
    except (ValueError, OverflowError):
        return 0


def _percent(config: dict[str, str], name: str, least: int, most: int) -> int:
    """Return a mark in percent, limited to `least`…`most` as the broker does. Default: `most`."""
    try:
        return min(max(int(config.get(name, "")), least), most)
    except ValueError:
        return most


def _removes_unread(config: dict[str, str]) -> bool:
    return config.get("cleanFileForciblyEnable") == "true"
