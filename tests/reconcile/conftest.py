"""One Spark session for all tests of reconciliation."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from reliable_mq.reconcile.runs.spark_session import session
from reliable_mq.runtime.java_home import use_java


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give a session; starting one takes seconds."""
    use_java()
    with session(is_small=True) as started:
        yield started
