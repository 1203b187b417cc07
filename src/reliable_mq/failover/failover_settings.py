"""The settings of a broker under a controller, with Apache RocketMQ's property names.

Source: Apache RocketMQ `BrokerConfig`, `MessageStoreConfig`.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from reliable_mq.errors import ConfigurationError
from reliable_mq.host_and_port import NotAPlace, host_and_port_of
from reliable_mq.plain_text import cut
from reliable_mq.wire.java_int import I32_MAX

_Positive = Annotated[int, msgspec.Meta(ge=1, le=I32_MAX)]
_SHOWN_MAX = 80

_UNSUPPORTED = {
    "asyncLearner": ("true", "this broker can always be elected; leave it out"),
    "fetchControllerAddrByDnsLookup": ("true", "name all controllers in controllerAddr"),
    "minInSyncReplicas": (
        "",
        "sends are not refused; inSyncReplicas says how many replicas SEND_OK needs",
    ),
    "enableElectUncleanMaster": ("", "it is a setting of the controller"),
}
"""Properties of Apache's that this broker refuses: the value ("": any), and the reason."""


class FailoverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who elects the master of a broker's name. Times in milliseconds."""

    is_controlled: bool = msgspec.field(default=False, name="enableControllerMode")
    controllers: str = msgspec.field(default="", name="controllerAddr")
    election_priority: Annotated[int, msgspec.Meta(ge=0, le=I32_MAX)] = msgspec.field(
        default=I32_MAX, name="brokerElectionPriority"
    )
    controller_timeout_ms: _Positive = msgspec.field(
        default=10_000, name="controllerHeartBeatTimeoutMills"
    )
    leader_interval_ms: _Positive = msgspec.field(default=5_000, name="syncBrokerMetadataPeriod")
    replica_lag_ms_max: _Positive = msgspec.field(default=15_000, name="haMaxTimeSlaveNotCatchup")

    @property
    def controller_addresses(self) -> list[str]:
        """The addresses of all controllers."""
        return [each.strip() for each in self.controllers.split(";") if each.strip()]


def check_failover(settings: FailoverSettings, properties: Mapping[str, str]) -> None:
    """Raise if a setting is wrong, or promises what this broker does not do.

    Raises:
        ConfigurationError: it is.
    """
    if not settings.is_controlled:
        return
    addresses = settings.controller_addresses
    if not addresses:
        raise ConfigurationError("enableControllerMode=true needs controllerAddr=HOST:PORT;…")
    for each in addresses:
        if not _is_place(each):
            raise ConfigurationError(f"controllerAddr={cut(each, _SHOWN_MAX)}: HOST:PORT;…")
    for name, (value, why) in _UNSUPPORTED.items():
        given = properties.get(name, "").strip()
        if given and value in ("", given.lower()):
            raise ConfigurationError(f"{name}={cut(given, _SHOWN_MAX)} is not supported: {why}")


def _is_place(text: str) -> bool:
    try:
        return host_and_port_of(text).port is not None
    except NotAPlace:
        return False
