"""What the wire carries, as Hypothesis draws it."""

from hypothesis import strategies as st

from reliable_mq.wire.record import Record, pack_host

I16 = st.integers(-(2**15), 2**15 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)  # Hypothesis draws no lone surrogates: they have no UTF-8
NAME = st.text(min_size=1, max_size=20)

IPV4_HOST = st.builds(pack_host, st.ip_addresses(v=4).map(str), I32)
IPV6_HOST = st.builds(pack_host, st.ip_addresses(v=6).map(str), I32)
HOST = IPV4_HOST | IPV6_HOST

# Both record versions: v2 begins at 128 bytes.
TOPIC = st.text(max_size=40) | st.text("aé", min_size=100, max_size=127)

RECORD = st.builds(
    Record,
    topic=TOPIC,
    body=st.binary(max_size=200),
    properties=st.binary(max_size=100),
    queue_id=I32,
    flag=I32,
    queue_offset=I64,
    commit_log_offset=I64,
    sys_flag=I32,
    born_time_ms=I64,
    born_host=HOST,
    store_time_ms=I64,
    store_host=HOST,
    reconsume_times=I32,
    prepared_transaction_offset=I64,
)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Draw bytes that were right until a few were flipped, cut off or put in."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(("flip", "cut", "insert", "length"))):
            case "flip" if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=8))
            case _:  # what a lying length looks like
                data[at : at + 4] = draw(st.sampled_from(_LYING_LENGTHS))
    return bytes(data)


_LYING_LENGTHS = tuple(
    value.to_bytes(4, "big", signed=True) for value in (-(2**31), -1, 0, 1, 2**24, 2**31 - 1)
)


@st.composite
def split(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Draw pieces that make up `data`, as a network would hand them over."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
