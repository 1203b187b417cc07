"""Count messages whose content was not compared with their stubs: it could not be unpacked. Pure.

LZ4 and ZSTD are extras of this package. If one is missing, the run reports that messages with this
compression are not checked, so that its result does not look complete.
"""

import pyarrow as pa
import pyarrow.compute as pc

from reliable_mq.wire.compression import KINDS, how_to_install, is_installed


def count_unchecked(verdicts: pa.Table) -> int:
    """Return the number of messages in `judge.VERDICTS` whose record could not be checked."""
    has_both = pc.and_(
        pc.is_valid(verdicts["stub_content_crc"]),
        pc.is_valid(verdicts["record_commit_log_offset"]),
    )
    is_open = pc.and_(has_both, pc.is_null(verdicts["record_content_crc"]))
    return pc.sum(pc.and_(verdicts["is_lead"], is_open)).as_py() or 0


def flaw(count: int) -> str | None:
    """Return the problem as one clause, if `count` is not 0; None: there is no problem.

    The text does not contain the number, so that people are notified once only.
    """
    if not count:
        return None
    missing = [kind for kind in KINDS if not is_installed(kind)]
    bring = " and ".join(f"{kind.upper()} ({how_to_install(kind)})" for kind in missing)
    what = f"what is not installed here: {bring}" if missing else "something unknown"
    return f"some could not be compared with their stubs, because they are compressed by {what}"
