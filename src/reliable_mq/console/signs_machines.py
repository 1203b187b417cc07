"""Signs of machines: disks of brokers and who reaches them, clocks, and processes that work. Pure.

Receives what brokers and processes say of themselves. Returns signs as `signs` does.
"""

from collections.abc import Iterator, Mapping, Sequence

from reliable_mq.client.administering.cluster_facts import BrokerFacts
from reliable_mq.console.signs import Sign, State, span
from reliable_mq.doctor.peer_checks import disk_of
from reliable_mq.doctor.timing_checks import FAR_SECONDS, SKEW_SECONDS_MAX
from reliable_mq.measuring.sql_machines import Machines, SeenProcess

_NAMED = 3
"""So many machines are named in a sign."""
_OPEN, _LOG_OPEN = "openToEverybody", "haOpenToEverybody"  # what a broker says of itself


def of_disks(brokers: Sequence[BrokerFacts], age: float | None, lists: set[str]) -> list[Sign]:
    """Return the sign of the fullest disk of a broker; without an answer, there is none."""
    disks = {
        _named(each): disk_of(each.config, each.runtime) for each in brokers if not each.failure
    }
    known = {name: disk for name, disk in disks.items() if disk.used}
    if not known:
        return []
    fullest = max(known, key=lambda name: known[name].used)
    full = {name: disk for name, disk in known.items() if disk.now or disk.soon}
    state = State.WELL
    if full:
        state = State.BAD if any(disk.now for disk in full.values()) else State.WARN
    text = "; ".join(
        f"{name}, {disk.used} %: it {' and '.join(disk.now or disk.soon)}"
        for name, disk in list(full.items())[:_NAMED]
    )
    others = f"The fullest disk of {len(known)} brokers: {fullest}." if len(known) > 1 else fullest
    link = "/brokers" if "brokers" in lists else ""
    figure = f"{known[fullest].used} % full"
    return [Sign("Disk of brokers", state, figure, text or others, age, link)]


def of_open_brokers(
    brokers: Sequence[BrokerFacts], age: float | None, lists: set[str]
) -> list[Sign]:
    """Return the sign of brokers that serve strangers; if none does, there is no sign."""
    served = [_named(each) for each in brokers if each.config.get(_OPEN) == "true"]
    copied = [_named(each) for each in brokers if each.config.get(_LOG_OPEN) == "true"]
    texts = []
    if served:
        texts.append(
            f"{', '.join(served[:_NAMED])}: strangers reach it, and need no account and no "
            "certificate to read and delete every message"
        )
    if copied:
        texts.append(
            f"{', '.join(copied[:_NAMED])}: whoever reaches its port for slaves gets every message"
        )
    if not texts:
        return []
    state = State.BAD if copied else State.WARN
    link = "/brokers" if "brokers" in lists else ""
    count = len({*served, *copied})
    return [Sign("Open to everybody", state, f"{count} open", f"{'. '.join(texts)}.", age, link)]


def of_clocks(
    machines: Mapping[str, Machines], brokers: Sequence[BrokerFacts], age: float | None
) -> list[Sign]:
    """Return the sign of the clock that is furthest from a database's.

    Args:
        machines: what each database knows, by its name.
        brokers: what brokers say; their clocks are compared with the first database's.
        age: how old this is, in seconds; None: nothing is known.
    """
    if not machines:
        return []
    differences = dict(_clocks(machines, brokers))
    off = {
        who: ahead
        for who, (ahead, error) in differences.items()
        if abs(ahead) > SKEW_SECONDS_MAX + error
    }
    if not off:
        text = f"{len(differences)} clocks agree with the database's within half a second."
        return [Sign("Clocks", State.WELL, "agree", text, age)]
    ordered = sorted(off, key=lambda who: -abs(off[who]))
    furthest = off[ordered[0]]
    text = "; ".join(
        f"{who} is {abs(off[who]):.1f} s {'ahead of' if off[who] > 0 else 'behind'} the database"
        for who in ordered[:_NAMED]
    )
    state = State.BAD if abs(furthest) > FAR_SECONDS else State.WARN
    return [Sign("Clocks", state, f"{abs(furthest):.1f} s off", text, age)]


def _clocks(
    machines: Mapping[str, Machines], brokers: Sequence[BrokerFacts]
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield how far each clock is ahead of the database's, and the possible error."""
    first = next(iter(machines.values()))
    for name, each in machines.items():
        before = f"database {name}: " if len(machines) > 1 else ""
        yield f"{before}this console", (-each.clock_ahead, each.clock_error)
        for process in each.processes:
            if not process.is_silent:
                yield f"{before}{_who(process)}", (process.clock_ahead, each.clock_error)
    for broker in brokers:
        if broker.clock_ahead is not None:
            error = broker.clock_error + first.clock_error
            yield f"broker {_named(broker)}", (broker.clock_ahead - first.clock_ahead, error)


def of_workers(
    processes: Sequence[SeenProcess],
    alone: Sequence[str],
    age: float | None,
    lists: set[str],
) -> Sign:
    """Return the sign of the processes that relay, consume and resend.

    Args:
        processes: those that have reported within a day, without this one.
        alone: the groups of the application that no worker consumes for.
        age: how old this is, in seconds; None: nothing is known.
        lists: the names of the lists that there are.
    """
    silent = [each for each in processes if each.is_silent]
    alive = len(processes) - len(silent)
    texts = [f"Nobody consumes for {', '.join(alone[:_NAMED])}"] if alone else []
    if silent:
        some = ", ".join(f"{_who(each)} for {span(each.silent)}" for each in silent[:_NAMED])
        texts.append(f"Silent: {some}{', and others' if len(silent) > _NAMED else ''}")
    if not processes:
        texts.append("No process has reported within a day")
    text = ". ".join(texts) or "Each process reports once a minute"
    state = State.WARN if alone or not alive else State.WELL
    link = "/workers" if "workers" in lists else ""
    figure = f"{alive:,} alive" if alive else "none alive"
    return Sign("Workers", state, figure, f"{text}.", age, link)


def _who(process: SeenProcess) -> str:
    return f"process {process.pid} on {process.host}"


def _named(broker: BrokerFacts) -> str:
    return f"{broker.name} (slave {broker.broker_id})" if broker.broker_id else broker.name
