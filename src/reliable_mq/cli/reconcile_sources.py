"""Which databases and brokers `reliable-mq reconcile` reads: from options, application, variables.

What is typed wins over the application, and the application over the variables.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

from reliable_mq.cli import reconcile_options as options
from reliable_mq.cli.credentials import variable
from reliable_mq.cli.shared_options import (
    APPLICATION_VARIABLE,
    BROKER_VARIABLE,
    DATABASE_VARIABLE,
    one_application,
)
from reliable_mq.errors import UsageError
from reliable_mq.settings import EMBEDDED
from reliable_mq.telemetry.log_choices import LogFormat, LogLevel

PREFIX = "rmq_"
PREFIX_VARIABLE = "RELIABLE_MQ_TABLE_PREFIX"


class Sources(NamedTuple):
    """What a run reads. `cluster`: name servers whose brokers are read by pulling; "": none.

    `application`: MODULE:OBJECT of the application that named the databases; "": none. `log_format`
    and `log_level` are its settings; None: it has none.
    """

    urls: Sequence[str]
    table_prefix: str
    stores: Sequence[str]
    cluster: str
    application: str = ""
    log_format: LogFormat | None = None
    log_level: LogLevel | None = None

    def __repr__(self) -> str:
        return f"Sources({len(self.urls)} databases, stores={self.stores}, {self.cluster!r})"


class SourceOptions(NamedTuple):
    """The options that say what a run reads, as they were typed; "" and None: not given."""

    argument: str
    application: str
    db: Sequence[str]
    table_prefix: str
    store: Sequence[str]
    slave_store: Sequence[str]
    cluster: str
    broker: str
    ledgers: str

    def __repr__(self) -> str:
        return f"SourceOptions({self.application or self.argument!r}, {len(self.db)} databases)"

    def read(self) -> Sources:
        """Return what the options, the application and the variables name.

        An export is judged without the variables: they name this machine's application, and the
        export may come from another one.

        Raises:
            UsageError: an application and a database are named, or it cannot be found.
        """
        urls = [each for each in self.db if each]
        stores = [each for each in self.store if each]
        named = one_application(self.argument, self.application)
        if named and urls:
            raise UsageError("give either --app MODULE:OBJECT or --db URL")
        if self.ledgers:
            return Sources(urls, self.table_prefix or PREFIX, stores, self.cluster)
        if not named and not urls:
            named = os.environ.get(APPLICATION_VARIABLE, "")
        prefix, broker, cluster = self.table_prefix, self.broker, self.cluster
        log: tuple[LogFormat | None, LogLevel | None] = (None, None)
        if named:
            from reliable_mq.cli.database_options import loaded  # noqa: PLC0415 - with the client

            mq = loaded(named)
            urls = [
                each.url.render_as_string(hide_password=False) for each in mq.databases.values()
            ]
            prefix = prefix or mq.settings.table_prefix
            broker = broker or mq.settings.broker
            log = mq.settings.log_format, mq.settings.log_level
        elif not urls:
            urls = variable(DATABASE_VARIABLE).split()
        broker = broker or os.environ.get(BROKER_VARIABLE, "")
        if not stores and not cluster:
            stores, cluster = _read_at(broker)
        prefix = prefix or os.environ.get(PREFIX_VARIABLE, "") or PREFIX
        return Sources(urls, prefix, stores, cluster, named, *log)


def source_options(
    *,
    argument: options.Named = "",
    application: options.Application = "",
    db: options.Databases = None,
    store: options.Stores = None,
    slave_store: options.SlaveStores = None,
    cluster: options.Cluster = "",
    broker: options.Broker = "",
    table_prefix: options.TablePrefix = "",
    ledgers: options.Ledgers = "",
) -> SourceOptions:
    """Return the options that say what a run reads."""
    return SourceOptions(
        *(argument, application, db or (), table_prefix, store or (), slave_store or ()),
        *(cluster, broker, ledgers),
    )


def _read_at(broker: str) -> tuple[list[str], str]:
    """Return the store of a broker inside of an application, or the name servers of others."""
    if broker.startswith(EMBEDDED):
        return [broker.removeprefix(EMBEDDED)], ""
    return [], broker
