"""Creates, changes and deletes topics at all brokers of a cluster.

All operations are idempotent: a broker that has the wanted state is left alone. So after the
failure of a broker, you can repeat the same call.
Source: Apache RocketMQ `UpdateTopicSubCommand`, `DeleteTopicSubCommand`, `DefaultMQAdminExtImpl`.
"""

from collections.abc import Collection

from reliable_mq.client.administering.cluster_reply import (
    AdminTarget,
    Brokers,
    ClusterReply,
    all_brokers,
    ask_all,
    change_each,
    check_found,
    first_failure,
    nothing,
)
from reliable_mq.client.administering.topic_settings import (
    TopicChange,
    TopicSettings,
    permission_text,
    to_put,
)
from reliable_mq.client.administering.topics import route, settings_at
from reliable_mq.client.checked import is_integer
from reliable_mq.client.flow import Call, Flow, Wait, call_all, now, reply_of, succeeded
from reliable_mq.errors import ConfigurationError, NoRoute, NotFound, ReliableMQError, UsageError
from reliable_mq.limits import RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX
from reliable_mq.names import check_name
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request

LOOK_AGAIN_SECONDS = 0.02
_ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"


def create(
    cluster: AdminTarget,
    topic: str,
    wanted: TopicSettings,
    *,
    only: Collection[str] = (),
    dry_run: bool = False,
) -> Flow[ClusterReply[list[str]]]:
    """Create a topic at the masters of all brokers; return where, by broker name.

    Brokers that have it with the wanted settings are left alone. Returns when the name servers know
    the topic, so that the next send uses it.

    Args:
        cluster: the cluster to ask.
        topic: its name.
        wanted: its settings.
        only: names of brokers; empty: all.
        dry_run: return where it would be created, but create nothing.

    Raises:
        ConfigurationError: when the name or a setting is invalid.
        UsageError: when a broker has it with other settings; then nothing is done.
        NoRoute: when the name servers know no broker, or do not learn the topic in time.
        RemoteError, Unavailable, ProtocolError: when no broker creates it.
    """
    check_name("topic", topic, TOPIC_LENGTH_MAX)
    put = to_put(topic, wanted, {})
    brokers = yield from all_brokers(cluster, only)
    known = yield from settings_at(cluster, brokers, topic)
    for name, has in known.value.items():
        if has != wanted:
            raise UsageError(
                f"broker {name} has topic {topic} with other settings"
                f" ({differences(has, wanted)}): change it by update"
            )
    commands = {
        name: put for name in brokers if name not in known.value and name not in known.failures
    }
    return (yield from _put(cluster, brokers, topic, commands, known, dry_run=dry_run))


def update(
    cluster: AdminTarget,
    topic: str,
    change: TopicChange,
    *,
    only: Collection[str] = (),
    dry_run: bool = False,
) -> Flow[ClusterReply[list[str]]]:
    """Change a topic at every broker that has it; return where, by broker name.

    Each broker keeps its own settings that `change` does not contain. Otherwise as `create`.

    Raises:
        NotFound: when no broker has it.
        ConfigurationError, UsageError, NoRoute, RemoteError, Unavailable, ProtocolError: as
            `create`.
    """
    brokers = yield from all_brokers(cluster, only)
    known = check_found(
        (yield from settings_at(cluster, brokers, topic)), f"no broker has topic {topic}"
    )
    commands: dict[str, Command] = {}
    for name, has in known.value.items():
        wanted = change.applied(has)
        if wanted != has:
            commands[name] = to_put(topic, wanted, has.attributes)
    return (yield from _put(cluster, brokers, topic, commands, known, dry_run=dry_run))


def give_queues(cluster: AdminTarget, topic: str, queues: int) -> Flow[None]:
    """Create a topic at the master of every broker, or change its number of queues.

    Returns when the name servers know all the queues, so that the next send uses them.

    Raises:
        ConfigurationError: when the name or the number of queues is invalid.
        NoRoute: when the name servers know no broker, or do not learn the topic in time.
        RemoteError, Unavailable: when a broker refuses or cannot be reached; others may have it.
    """
    check_name("topic", topic, TOPIC_LENGTH_MAX)
    if not is_integer(queues) or queues < 1:
        raise ConfigurationError(f"{queues!r} is not a number of queues: give 1 or more")
    put = to_put(topic, TopicSettings(read_queues=queues, write_queues=queues), {})
    brokers = yield from all_brokers(cluster)
    brokers = {name: broker for name, broker in brokers.items() if broker.master}
    answers = yield from ask_all(cluster, brokers, put, nothing, masters_only=True)
    if answers.failures:
        raise first_failure(answers.failures)
    yield from _await_route(cluster, topic, dict.fromkeys(brokers, put))


def _put(
    cluster: AdminTarget,
    brokers: Brokers,
    topic: str,
    commands: dict[str, Command],
    known: ClusterReply[dict[str, TopicSettings]],
    *,
    dry_run: bool,
) -> Flow[ClusterReply[list[str]]]:
    answers = yield from change_each(cluster, brokers, commands, known, dry_run=dry_run)
    if not dry_run:
        yield from _await_route(cluster, topic, {name: commands[name] for name in answers.value})
    return answers


def _await_route(cluster: AdminTarget, topic: str, commands: dict[str, Command]) -> Flow[None]:
    """Wait until a name server's route has the brokers' new settings."""
    wanted = {
        (name, ext["readQueueNums"], ext["writeQueueNums"], permission_text(int(ext["perm"])))
        for name, ext in ((name, command.ext_fields) for name, command in commands.items())
    }
    if not wanted:
        return
    instant = yield from now()
    deadline = instant.seconds + cluster.settings.request_timeout_seconds
    while True:
        try:
            places = yield from route(cluster, topic)
        except NoRoute:
            places = []
        told = {
            (place.broker, str(place.read_queues), str(place.write_queues), place.permission)
            for place in places
        }
        if wanted <= told:
            cluster.routes.mark_stale(topic)
            return
        instant = yield from now()
        if instant.seconds >= deadline:
            raise NoRoute(f"topic {topic} is created, but its brokers did not register it")
        yield Wait(LOOK_AGAIN_SECONDS)


def differences(has: TopicSettings, wanted: TopicSettings) -> str:
    """Return the differences as text: "write_queues 4, not 8"."""
    return ", ".join(
        f"{name} {getattr(has, name)}, not {getattr(wanted, name)}"
        for name in TopicSettings.__struct_fields__
        if getattr(has, name) != getattr(wanted, name)
    )


def delete(
    cluster: AdminTarget, topic: str, *, dry_run: bool = False
) -> Flow[ClusterReply[list[str]]]:
    """Delete a topic at all brokers, then at all name servers; return where it existed.

    Its messages cannot be read any more. Name servers delete it only after every broker has:
    otherwise the topic would stay, unfindable, at a broker that was away. The same call deletes
    the rest later.

    Args:
        cluster: the cluster to ask.
        topic: its name.
        dry_run: return where it would be deleted, but delete nothing.

    Raises:
        NotFound: when no broker has it.
        RemoteError, Unavailable, ProtocolError: when no broker does it; topics of the brokers are
            refused.
    """
    check_name("topic", topic, RETRY_TOPIC_LENGTH_MAX)
    brokers = yield from all_brokers(cluster)
    known = yield from settings_at(cluster, brokers, topic)
    if not known.value and not (yield from _is_routed(cluster, topic)):
        check_found(known, f"no broker has topic {topic}")
    if dry_run:
        return ClusterReply(sorted(known.value), known.failures)
    asked = request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    deleted = yield from ask_all(cluster, brokers, asked, nothing, masters_only=True)
    failures = deleted.failures | (yield from _delete_at_slaves(cluster, brokers, asked))
    if not failures:
        failures = yield from _forget(cluster, topic)
    cluster.routes.mark_stale(topic)
    if not deleted.value:
        raise first_failure(failures)
    return ClusterReply([name for name in deleted.value if name in known.value], failures)


def _is_routed(cluster: AdminTarget, topic: str) -> Flow[bool]:
    try:
        yield from route(cluster, topic)
    except NoRoute:
        return False
    return True


def _delete_at_slaves(
    cluster: AdminTarget, brokers: Brokers, command: Command
) -> Flow[dict[str, ReliableMQError]]:
    addresses = {
        f"{name}:{number}": address
        for name, broker in brokers.items()
        for number, address in broker.addresses.items()
        if address != broker.master
    }
    return (yield from _failures_at(cluster, addresses, [command]))


def _forget(cluster: AdminTarget, topic: str) -> Flow[dict[str, ReliableMQError]]:
    """Delete a topic and its order configuration at every name server."""
    order = {"namespace": _ORDER_NAMESPACE, "key": topic}
    commands = [
        request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic}),
        request(RequestCode.DELETE_KV_CONFIG, order),
    ]
    addresses = {f"name server {address}": address for address in cluster.name_servers.addresses}
    return (yield from _failures_at(cluster, addresses, commands))


def _failures_at(
    cluster: AdminTarget, addresses: dict[str, str], commands: list[Command]
) -> Flow[dict[str, ReliableMQError]]:
    timeout = cluster.settings.request_timeout_seconds
    asked = [(name, command) for name in addresses for command in commands]
    calls = [Call(addresses[name], command, timeout) for name, command in asked]
    failures: dict[str, ReliableMQError] = {}
    for (name, _), answer in zip(asked, (yield from call_all(calls)), strict=True):
        try:
            succeeded(reply_of(answer))
        except NotFound:
            continue
        except ReliableMQError as error:
            failures[name] = error
    return failures
