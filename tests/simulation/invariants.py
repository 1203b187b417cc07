"""The invariants of a whole broker."""

from reliable_mq.broker_core.core import BrokerCore


def check_invariants(core: BrokerCore) -> None:
    """Ask every table of a broker for its invariants."""
    state = core.state
    stored = (state.store, state.store.log, state.topics, state.groups, state.offsets)
    served = (state.clients, state.locks, state.pulls, state.schedule, state.answers)
    popped = (state.pops, state.notifications, state.orders)
    timed = (state.timers.revival, state.timers.settled)
    for table in (*stored, *served, *popped, *timed):
        table.invariants()
    state.popped.invariants(state.store.log.durable)
