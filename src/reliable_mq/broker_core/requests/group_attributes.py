"""Changes of a consumer group's attributes: `+name` sets an attribute, `-name` removes it.

Other attributes are kept. Source: Apache RocketMQ 5.4.0 `AttributeUtil`,
`SubscriptionGroupAttributes`.
"""

import re
from collections.abc import Mapping

from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.wire.codes import ResponseCode

_JAVA_LONG = re.compile(r"[+-]?[0-9]+")
_RANGES = {"priority.factor": range(101)}
"""The supported attributes, and the allowed numbers of each."""


def altered(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """Return a group's attributes after `changes`.

    Args:
        current: its current attributes; None: the group is new.
        changes: values by names with a sign.

    Raises:
        RequestRefused: when a change is malformed or not possible.
    """
    attributes = dict(current or {})
    for key, value in changes.items():
        sign, name = key[:1], key[1:]
        if not name or "+" in name or "-" in name:
            raise _refused("kv string format wrong.")
        if any(other != key and other[1:] == name for other in changes):
            raise _refused(f"alter duplication key. key: {name}")
        if sign != "+" and current is None:
            raise _refused(f"only add attribute is supported while creating topic. key: {name}")
        if sign not in ("+", "-"):
            raise _refused(f"wrong format key: {name}")
        if sign == "-" and name not in attributes:
            raise _refused(f"attempt to delete a nonexistent key: {name}")
        if name not in _RANGES:
            raise _refused(f"unsupported key: {name}")
        if sign == "-":
            del attributes[name]
        else:
            attributes[name] = _verified(value, _RANGES[name])
    return attributes


def _verified(value: str, allowed: range) -> str:
    if not _JAVA_LONG.fullmatch(value):
        raise _refused(f'For input string: "{value}"')
    if int(value) not in allowed:
        raise _refused(f"value is not in range({allowed[0]}, {allowed[-1]})")
    return value


def _refused(why: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, why)
