"""Messages whose content was not held against their stubs: nothing here unpacks it. Pure.

LZ4 and ZSTD are extras of this package: where they are missing, a run says that what was compressed
by them is not checked, so that it does not look whole.
"""

import pyarrow as pa
import pyarrow.compute as pc

from reliable_mq.wire.compression import KINDS, how_to_install, is_installed


def count_unchecked(verdicts: pa.Table) -> int:
    """Return of how many messages, of rows of `judge.VERDICTS`, the record could not be checked."""
    has_both = pc.and_(
        pc.is_valid(verdicts["stub_content_crc"]),
        pc.is_valid(verdicts["record_commit_log_offset"]),
    )
    is_open = pc.and_(has_both, pc.is_null(verdicts["record_content_crc"]))
    return pc.sum(pc.and_(verdicts["is_lead"], is_open)).as_py() or 0


def flaw(count: int) -> str | None:
    """Return what is missing when so many were not checked, as one clause; None: nothing.

    The same whatever their number, so that people are told of it once.
    """
    if not count:
        return None
    missing = [kind for kind in KINDS if not is_installed(kind)]
    bring = " and ".join(f"{kind.upper()} ({how_to_install(kind)})" for kind in missing)
    what = f"what is not installed here: {bring}" if missing else "something unknown"
    return f"some could not be held against their stubs, for they are compressed by {what}"
