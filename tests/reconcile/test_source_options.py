"""Options of the data sources: those that there are, and no others."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.types import StructType

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers import spark_log_source, spark_topic_source
from reliable_mq.reconcile.brokers.spark_log_source import LogSource
from reliable_mq.reconcile.brokers.spark_topic_source import TopicSource
from reliable_mq.reconcile.databases import spark_table_source
from reliable_mq.reconcile.databases.spark_table_source import TableSource

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "spark_sources.md").read_text()
SOURCES = {
    LogSource: ({"PATH": "store"}, spark_log_source.OPTIONS),
    TopicSource: ({"namesrv": "127.0.0.1:9876", "part": "offsets"}, spark_topic_source.OPTIONS),
    TableSource: ({"url": "sqlite://", "Table": "stub"}, spark_table_source.OPTIONS),
}


@pytest.mark.parametrize("source", SOURCES)
def test_an_option_that_a_source_does_not_have_is_one_error_that_names_those_it_has(
    source: type[DataSource],
) -> None:
    """Given a misspelt option, with and without a schema and as a stream, then it is refused."""
    given, known = SOURCES[source]
    asked = source(CaseInsensitiveDict(given | {"colums": "topic"}))
    says = f"{source.name()} has no option 'colums'; it has {', '.join(known)}"

    verbs: list[Callable[[], object]] = [asked.schema, lambda: asked.reader(StructType())]
    if source is not TopicSource:  # it is no stream
        verbs.append(lambda: asked.streamReader(StructType()))
    for verb in verbs:
        with pytest.raises(ConfigurationError, match=re.escape(says)):
            verb()
    assert source(CaseInsensitiveDict(given)).schema()


@pytest.mark.parametrize("source", SOURCES)
def test_the_page_names_every_option_of_a_source_and_no_other(source: type[DataSource]) -> None:
    section = PAGE.partition(f": `{source.name()}`\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \|", section.partition("| column |")[0], re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    streams = set(re.findall(r"`(startingOffsets|failOnDataLoss)`\s\(", section))

    assert named | streams == set(SOURCES[source][1])
