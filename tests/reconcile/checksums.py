"""Another body of the same checksum, as a forger makes it."""

import zlib


def same_checksum(body: bytes) -> bytes:
    """Return another body with the CRC-32 of `body`: four bytes are chosen that make it so."""
    start = b"forged " + body
    wanted, table = zlib.crc32(body) ^ 0xFFFFFFFF, _crc_table()
    places = []
    for _ in range(4):  # backwards: which entry of the table each of the last four steps took
        place = next(index for index in range(256) if table[index] >> 24 == wanted >> 24)
        places.append(place)
        wanted = ((wanted ^ table[place]) << 8) & 0xFFFFFFFF
    crc, tail = zlib.crc32(start) ^ 0xFFFFFFFF, bytearray()
    for place in reversed(places):
        tail.append((crc ^ place) & 0xFF)
        crc = (crc >> 8) ^ table[place]
    found = start + bytes(tail)
    assert zlib.crc32(found) == zlib.crc32(body)
    return found


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return table
