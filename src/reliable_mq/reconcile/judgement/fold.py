"""Fold a message with more records than fit into memory to the records that decide. Pure.

A foreign producer may give all its messages the same id. Records are grouped by role, group, queue
and attempt. Of each group, only the records with the smallest and the largest log offset, queue
offset, times and checksum are kept. The facts (`facts`) need no more; only the number of copies is
lost, so it is returned separately. Stubs and consume logs are not folded.
"""

import numpy as np
import pyarrow as pa

from reliable_mq.reconcile.judgement.event_rows import NAMES, NONE, bodies_of, names_of
from reliable_mq.reconcile.judgement.events import RECORD

_EXTREMES = ("log_offset", "queue_offset", "seen", "changed", "until", "crc")
_KEY = ("state", "queue_id", "tries")


def folded(rows: pa.Table) -> tuple[pa.Table, np.ndarray]:
    """Return the rows of one message (`EVENT_ROWS`) that decide, and the bodies of the other rows.

    The bodies are numpy values of `event_rows.FIXED`.
    """
    chunk = rows.combine_chunks()
    body = bodies_of(chunk["body"].chunk(0))
    if chunk["id"][0].as_py() is None:  # damage: no message
        return rows, body[:0]
    records = np.flatnonzero(body["kind"] == RECORD)
    kind = _kinds(body[records], _names(chunk["names"].chunk(0))[records])
    is_kept = body["kind"] != RECORD
    for name in _EXTREMES:
        order = np.lexsort((body[name][records], kind))
        ends = np.flatnonzero(np.diff(kind[order], append=-1))
        begins = np.flatnonzero(np.diff(kind[order], prepend=-1))
        is_kept[records[order[ends]]] = True
        is_kept[records[order[begins]]] = True
    return chunk.filter(pa.array(is_kept)), body[~is_kept]


def _names(texts: pa.Array) -> np.ndarray:
    """Return one number for the names of each row, ignoring the reasons of dead letters."""
    encoded = texts.dictionary_encode()
    names = names_of(encoded.dictionary.to_pylist())
    keys = list(zip(*(names[name] for name in NAMES if name != "reason"), strict=True))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    of_value = np.array([numbers[key] for key in keys], np.int64)
    found: np.ndarray = of_value[encoded.indices.to_numpy()]
    return found


def _kinds(body: np.ndarray, names: np.ndarray) -> np.ndarray:
    has_crc = body["crc"] != NONE[4]
    columns = [names, has_crc, *(body[name].astype(np.int64) for name in _KEY)]
    _, kinds = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    return kinds.reshape(-1)
