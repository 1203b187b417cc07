"""The same work for `bench.rival_procrastinate`: a job is an order, its effect one row.

Its users start a worker by `procrastinate --app bench.rival_procrastinate_app.app worker`.
"""

import asyncio
import os

import procrastinate
from psycopg_pool import AsyncConnectionPool

CONCURRENCY = 16
URL = os.environ["RIVAL_DATABASE"]

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=URL, min_size=4, max_size=CONCURRENCY + 4)
)
_effects: dict[asyncio.AbstractEventLoop, AsyncConnectionPool] = {}


async def _pool() -> AsyncConnectionPool:
    loop = asyncio.get_running_loop()
    if loop not in _effects:
        _effects[loop] = pool = AsyncConnectionPool(
            URL, min_size=CONCURRENCY, max_size=CONCURRENCY, open=False
        )
        await pool.open(wait=True)
    return _effects[loop]


@app.task(name="write_effect")
async def write_effect(order_id: int, amount: str) -> None:
    """The business of a job: one row, committed."""
    async with (await _pool()).connection() as connection:
        await connection.execute(
            "INSERT INTO rival_effect (order_id, amount) VALUES (%s, %s)", (order_id, amount)
        )
