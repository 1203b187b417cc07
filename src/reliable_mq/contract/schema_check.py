"""Compares the payloads of an application with recorded ones. Pure.

Two directions. *Backward*: what was written before the change is read after it; messages under way
and senders that are updated later need this. *Forward*: what is written after the change is read by
code from before it; consumers that are updated later need this.

A payload with a `schema` must keep both within one version. With a higher version, its upgrades
take over: every recorded version must still be readable. What only this application reads must stay
backward compatible, what it only sends forward compatible.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from reliable_mq.contract.compatibility import schema_faults
from reliable_mq.contract.json_schema import Json
from reliable_mq.contract.payloads import PayloadSchemas


class Incompatibility(NamedTuple):
    """One incompatible change. `direction`: "backward", "forward" or "removed"."""

    payload: str
    direction: str
    path: str
    text: str

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{self.payload}: {self.direction}: {place}{self.text}"


class SchemaCheck(NamedTuple):
    """The result of a check. `unrecorded`: names of payloads whose record is missing or differs."""

    incompatible: list[Incompatibility]
    unrecorded: list[str]


def check_schemas(now: Sequence[PayloadSchemas], recorded: Sequence[PayloadSchemas]) -> SchemaCheck:
    """Compare the payloads of the code with the recorded ones.

    Args:
        now: the payloads of the application.
        recorded: the records; a payload with a schema may have one for each version.
    """
    by_name = {each.name: each for each in now}
    of_version = {(each.name, each.version): each for each in recorded}
    found = [fault for each in recorded for fault in _faults(by_name, each)]
    unrecorded = [_title(each) for each in now if of_version.get((each.name, each.version)) != each]
    return SchemaCheck(found, unrecorded)


def _title(payload: PayloadSchemas) -> str:
    return f"{payload.name} v{payload.version}" if payload.version else payload.name


def _faults(
    by_name: Mapping[str, PayloadSchemas], old: PayloadSchemas
) -> Iterator[Incompatibility]:
    new, title = by_name.get(old.name), _title(old)
    if new is None:
        text = "no topic or consumer has it any more; delete its file if that is meant"
        yield Incompatibility(title, "removed", "", text)
        return
    if new.version > old.version:
        if old.version and old.version < new.oldest:
            text = f"version {old.version} cannot be read: the oldest readable is {new.oldest}"
            yield Incompatibility(title, "backward", "", f"{text}; give an upgrade for it")
        if old.version or new.oldest <= 1:
            return  # the upgrades read it
    elif new.version < old.version:
        text = f"the code writes version {new.version}, and cannot read version {old.version}"
        yield Incompatibility(title, "backward", "", text)
        return
    if old.rule != "forward" and new.rule != "forward":
        written = old.reads if old.rule == "backward" else old.writes
        yield from _of(title, "backward", new.reads, written)
    if old.rule != "backward" and new.rule != "backward":
        read = old.writes if old.rule == "forward" else old.reads
        yield from _of(title, "forward", read, new.writes)


def _of(
    title: str, direction: str, reader: Json | None, writer: Json | None
) -> Iterator[Incompatibility]:
    if reader is None:
        return  # bytes are read whatever they are
    if writer is None:
        yield Incompatibility(title, direction, "$", "is bytes, and must be JSON")
        return
    for fault in schema_faults(reader, writer):
        yield Incompatibility(title, direction, fault.path, fault.text)
