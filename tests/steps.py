"""At which steps a life dies: at some in `make test`, at every one in `make crash`.

A death takes a tenth of a second or more, and there are thousands. Which ones are tried is told by
the test's name, so that the modes of one test try different ones, and each run tries the same.
"""

import os
import zlib

EVERY_STEP = "RELIABLE_MQ_EVERY_STEP" in os.environ


def last_steps(steps_max: int, one_in: int) -> range:
    """Return the steps to die at, of `steps_max`: one in `one_in`."""
    if EVERY_STEP:
        return range(steps_max)
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
    return range(zlib.crc32(test.encode()) % one_in, steps_max, one_in)
