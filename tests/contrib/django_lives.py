"""Lives of one consumer process that uses Django: the protocol, without a broker."""

from typing import Any

from django.db import connections
from sqlalchemy import select
from tests.app.kill_switch import KillSwitch
from tests.app.lives import Life, delivery
from tests.waiting import run_scene

from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.contrib.django.database import DjangoDatabase


class DjangoLife(Life):
    """One life of a process whose handlers use Django."""

    def __init__(self, mq: DjangoMQ, handler: Any, switch: KillSwitch | None = None, **more: Any):
        consumer_options = {
            name: more.pop(name)
            for name in ("batch", "log_receipt", "max_attempts")
            if name in more
        }
        mq._declared._consumers.clear()
        mq.consumer("orders", group="payments", **consumer_options)(handler)
        (declared,) = mq._declared.consumers
        super().__init__(
            str(mq.database.url.render_as_string(hide_password=False)),
            None,
            switch,
            handler=declared.plan.function,
            **consumer_options,
            **more,
        )
        self.database.close()
        self.database = mq.database
        assert isinstance(self.database, DjangoDatabase)
        self.attempts = type(self.attempts)(
            self.attempts.consumer, self.database, retry_waits=(0.01,)
        )

    async def __aexit__(self, *_: object) -> None:
        await self.deliveries.close()
        for _thread in range(8):  # of this thread pool
            self._threads.submit(connections.close_all)
        self._threads.shutdown()


def handled(mq: DjangoMQ, handler: Any, *names: str, **options: Any) -> list[Any]:
    """Deliver messages until they are settled; return the outcomes."""

    async def scene() -> list[Any]:
        async with DjangoLife(mq, handler, **options) as life:
            return await life.until_settled(*map(delivery, names))

    return run_scene(scene())


def handled_once(mq: DjangoMQ, handler: Any, *names: str, **options: Any) -> list[Any]:
    async def scene() -> list[Any]:
        async with DjangoLife(mq, handler, **options) as life:
            return await life.handle(*map(delivery, names))

    return run_scene(scene())


def effects(mq: DjangoMQ) -> list[str]:
    with mq.database.reading_engine.connect() as other:
        return sorted(other.exec_driver_sql("SELECT message FROM shop_payment").scalars())


def consumed(mq: DjangoMQ) -> list[str]:
    logs = mq.database.logs
    with mq.database.reading_engine.connect() as other:
        return sorted(other.execute(select(logs.c.message_id).where(logs.c.state == 1)).scalars())
