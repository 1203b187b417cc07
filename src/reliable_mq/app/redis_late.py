"""The Redis of an application. redis-py is imported when a worker starts, not by other commands.

Its import takes a fifth of the time in which `reliable-mq stub list` starts.
"""

from typing import TYPE_CHECKING

from reliable_mq.idempotency.redis_urls import place_of
from reliable_mq.settings import Settings

if TYPE_CHECKING:
    from reliable_mq.idempotency.redis_leases import RedisLeases


def check_redis(settings: Settings) -> None:
    """Check the URL of Redis. Only an option in it needs redis-py.

    Raises:
        ConfigurationError: it is no URL of Redis, or redis-py does not know an option.
    """
    if settings.redis and place_of(settings.redis).query:
        from reliable_mq.idempotency.redis_servers import servers_of  # noqa: PLC0415 - see the head

        servers_of(settings.redis, timeout=settings.redis_timeout_seconds)


def open_leases(settings: Settings) -> "RedisLeases | None":
    """Return the leases in the application's Redis, on the running loop; None: it has no Redis."""
    if not settings.redis:
        return None
    from reliable_mq.idempotency.redis_leases import RedisLeases  # noqa: PLC0415 - see the head

    return RedisLeases(
        settings.redis,
        duplicate_window=settings.duplicate_window_seconds,
        timeout=settings.redis_timeout_seconds,
    )
