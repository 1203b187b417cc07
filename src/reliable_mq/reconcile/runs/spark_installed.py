"""Names the extra if Spark or what it needs is missing. Import it before modules of Spark."""

from reliable_mq.extras import extra_of

with extra_of("a reconciliation"):
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark  # noqa: F401
