"""The gRPC endpoint of `reliable-mq broker`. It needs an extra, which is imported only for it."""

from typing import TYPE_CHECKING

from reliable_mq.errors import AddressRefused, ConfigurationError
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.controlled_broker import is_controlled
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

_NO_TIMERS = (
    "--grpc-port with timerWheelEnable=false: 5.x clients can send, but receive nothing, and their "
    "delayed messages are refused; remove timerWheelEnable=false"
)

if TYPE_CHECKING:
    from reliable_mq.runtime.broker_endpoint import BrokerEndpoint


def check_endpoint(options: BrokerOptions) -> None:
    """Check, before the broker starts, that it can have an endpoint.

    Raises:
        ExtraMissing: a package is not installed; the error names its extra.
        ConfigurationError: a controller decides the role of the broker.
    """
    from reliable_mq.runtime import broker_endpoint  # noqa: F401, PLC0415 - it needs an extra

    if is_controlled(options):
        raise ConfigurationError(
            "--grpc-port: a broker under a controller changes its role; run `reliable-mq proxy` "
            "before the cluster instead"
        )


async def started_endpoint(
    server: BrokerServer, options: BrokerOptions, port: int
) -> "BrokerEndpoint":
    """Return the endpoint of a broker that has started; close the broker if that fails.

    Raises:
        AddressRefused: the port is taken.
    """
    from reliable_mq.runtime.broker_endpoint import BrokerEndpoint  # noqa: PLC0415

    if options.properties.get("timerWheelEnable", "").strip().lower() == "false":
        broker_events.BROKER_SETTING_DOUBTFUL.log(log, problem=_NO_TIMERS)
    endpoint = BrokerEndpoint(server, options, port)
    try:
        await endpoint.start()
    except AddressRefused as error:
        await server.close()
        raise AddressRefused(f"{error}: --grpc-port (0: a free one)") from error
    return endpoint
