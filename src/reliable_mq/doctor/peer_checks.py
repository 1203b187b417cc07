"""Redis and the broker: are they there, and do they keep what we rely on? Values only."""

from reliable_mq.client.sending.timed import TIMERS_SINCE
from reliable_mq.doctor.check_context import CheckContext, RedisFacts
from reliable_mq.doctor.finding import CheckFindings
from reliable_mq.limits import DELAY_LEVELS_TEXT, REFUSES_SENDS_PERCENT, REMOVES_FILES_PERCENT
from reliable_mq.settings import EMBEDDED

_READ_AND_WRITE = 6
_NEARLY_FULL_PERCENT = 5  # below a mark
_REFUSES = "diskSpaceWarningLevelRatio", *REFUSES_SENDS_PERCENT
_REMOVES = "diskSpaceCleanForciblyRatio", *REMOVES_FILES_PERCENT
_DISK_RATIOS = "commitLogDiskRatio", "consumeQueueDiskRatio"


def redis(context: CheckContext, told: CheckFindings) -> None:
    """Redis answers in time and takes writes; without it everything costs one more commit."""
    if not context.redis:
        told.skip("no Redis is set: the database alone decides")
        return
    for each in context.redis:
        _redis(each, context.settings.redis_timeout_seconds, told)
    if not told.findings:
        slowest = max(each.answer_seconds for each in context.redis)
        count = len(context.redis)
        who = "it answers" if count == 1 else f"{count} primaries of a cluster answer"
        told.ok(f"{who} in {slowest * 1000:.1f} ms")


def _redis(facts: RedisFacts, timeout: float, told: CheckFindings) -> None:
    who = f"Redis {facts.name}".rstrip()
    if facts.failure:
        told.error(
            f"{who} cannot be reached: {facts.failure}",
            "start it, or correct redis (RELIABLE_MQ_REDIS); until then the database alone decides",
        )
        return
    if facts.role not in ("master", ""):
        told.error(
            f"{who} is a {facts.role} and refuses leases",
            "give the address of the master, or of Sentinel",
        )
    if facts.answer_seconds > timeout / 2:
        told.warn(
            f"{who} took {facts.answer_seconds:.2f} s to answer, after {timeout:g} s it counts as "
            "away",
            "put it nearer, or raise redis_timeout_seconds",
        )


def broker(context: CheckContext, told: CheckFindings) -> None:
    """Every broker answers, takes writes, and acknowledges only what is on its disk (P3)."""
    cluster = context.cluster
    if cluster is None:
        if context.settings.broker.startswith(EMBEDDED):
            told.skip(context.cluster_failure)
        else:
            told.error(
                f"the cluster cannot be reached: {context.cluster_failure}",
                "start the name server and the broker, or correct broker (RELIABLE_MQ_BROKER)",
            )
        return
    if not cluster.brokers:
        told.error("the name servers know no broker", "start a broker, or look at its log")
    for each in cluster.brokers:
        if each.failure:
            told.error(f"broker {each.name} at {each.address}: {each.failure}", "look at its log")
            continue
        _broker(each.name, each.config, each.runtime, told)
        _timers(each.name, each.config, each.runtime, context.settings.timer_range_seconds, told)
    if not told.findings:
        names = ", ".join(each.name for each in cluster.brokers)
        told.ok(f"{names}, {len(cluster.topics)} topics")


def _timers(
    name: str,
    config: dict[str, str],
    runtime: dict[str, str],
    timer_range: float,
    told: CheckFindings,
) -> None:
    """A broker shows messages at their time, as far ahead as it is believed to."""
    version, reach = runtime.get("brokerVersion", ""), config.get("timerMaxDelaySec", "")
    is_old = version.isdecimal() and int(version) < TIMERS_SINCE
    if is_old or config.get("timerWheelEnable") == "false":
        why = "is older than 5.0" if is_old else "has timerWheelEnable=false"
        told.warn(
            f"broker {name} {why}, so it has no timers: delays are rounded up to the next of its "
            "delay levels",
            "a newer broker, or timerWheelEnable=true; else timer_range_seconds=7200",
        )
    elif reach.isdecimal() and int(reach) < timer_range:
        told.warn(
            f"broker {name} takes messages {reach} s ahead, less than "
            f"timer_range_seconds={timer_range:g}: it refuses what is further, which then waits in "
            "the database",
            f"timerMaxDelaySec={timer_range:g} at the broker, or timer_range_seconds={reach}",
        )


def _broker(
    name: str, config: dict[str, str], runtime: dict[str, str], told: CheckFindings
) -> None:
    flush = config.get("flushDiskType", "SYNC_FLUSH")
    if flush != "SYNC_FLUSH":
        told.error(
            f"broker {name} acknowledges before a message is on the disk ({flush}): the loss of "
            "power takes it away (P3); stubs are sent again only as long as they are unconfirmed",
            "flushDiskType=SYNC_FLUSH; or live with it, replicas and a battery",
        )
    if _removes_unread(config):
        mark = _percent(config, *_REMOVES)
        told.warn(
            f"broker {name} removes messages that nobody has read when its disk is more than "
            f"{mark}% full, whatever fills it (P2); stubs are sent again only as long as they are "
            "unconfirmed",
            "cleanFileForciblyEnable=false: a disk that fills then refuses sends",
        )
    permission = config.get("brokerPermission", "6")
    if permission.isdecimal() and int(permission) & _READ_AND_WRITE != _READ_AND_WRITE:
        told.error(
            f"broker {name} has permission {permission}: it does not serve both reads and writes",
            "brokerPermission=6",
        )
    levels = " ".join(config.get("messageDelayLevel", DELAY_LEVELS_TEXT).split())
    if levels != DELAY_LEVELS_TEXT:
        told.error(
            f"broker {name} has the delay levels {levels!r}: retries and delays of the client "
            "come at other times than asked for",
            f"messageDelayLevel={DELAY_LEVELS_TEXT}",
        )
    _disk(name, config, runtime, told)


def _disk(name: str, config: dict[str, str], runtime: dict[str, str], told: CheckFindings) -> None:
    """The disk of a broker has room: from its own marks on it removes files and refuses sends."""
    used = max(_used_percent(runtime, each) for each in _DISK_RATIOS)
    ends = [(_percent(config, *_REFUSES), "refuses sends")]
    if _removes_unread(config):
        ends.insert(0, (_percent(config, *_REMOVES), "removes files before their time"))
    state = f"the disk of broker {name} is {used}% full"
    now = [does for mark, does in ends if used > mark]
    soon = [f"{does} above {mark}%" for mark, does in ends if used > mark - _NEARLY_FULL_PERCENT]
    if now:
        told.error(f"{state}: it {' and '.join(now)}", "make room")
    elif soon:
        told.warn(f"{state}: it {' and '.join(soon)}", "make room")


def _used_percent(runtime: dict[str, str], name: str) -> int:
    """Return how full a disk is, in whole percent; 0 when the broker does not know."""
    try:
        return max(0, round(float(runtime.get(name, "")) * 100))
    except (ValueError, OverflowError):
        return 0


def _percent(config: dict[str, str], name: str, least: int, most: int) -> int:
    """Return a mark as the broker takes it: within its bounds, of which the higher is default."""
    try:
        return min(max(int(config.get(name, "")), least), most)
    except ValueError:
        return most


def _removes_unread(config: dict[str, str]) -> bool:
    return config.get("cleanFileForciblyEnable") == "true"
