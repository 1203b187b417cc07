"""The words of settings that take one of a few. Types only."""

from typing import Literal

Strictness = Literal["warn", "raise", "allow"]
"""What happens when something is sent in a way that makes a promise weaker."""
RetentionMode = Literal["rows", "partitions", "off"]
"""How settled rows are removed."""
RetentionWaits = Literal["auto", "yes", "no"]
"""Whether what was not reconciled is kept."""
