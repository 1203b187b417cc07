"""The page on the broker names every property, with the default that it has."""

from pathlib import Path

import msgspec

from reliable_mq.broker_core.config import BrokerConfig

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "broker_properties.md"


def test_the_page_lists_every_property_with_its_default() -> None:
    rows = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            _, name, default, *_ = (cell.strip() for cell in line.split("|"))
            rows[name.strip("`")] = default
    for field in msgspec.structs.fields(BrokerConfig):
        default = field.default
        text = str(default).lower() if isinstance(default, bool) else str(default)
        if "…" in rows[field.encode_name]:
            begin, _, end = rows[field.encode_name].strip("`").partition("…")
            assert text.startswith(begin.strip())
            assert text.endswith(end.strip())
        else:
            assert rows[field.encode_name] == (text or "none"), field.encode_name
