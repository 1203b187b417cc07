"""Tells whether a disk has room for a broker: above its mark a broker refuses every send.

Receives a folder; hands on what to say when its disk is too full.
"""

from pathlib import Path

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.runtime.file_disk import used_ratio_of


def lack_of_room(folder: Path) -> str:
    """Return what to say when a broker with default settings refuses sends there; otherwise "".

    Raises:
        OSError: when the folder does not exist.
    """
    used, refuses = used_ratio_of(folder), BrokerConfig().warning_percent
    if used * 100 <= refuses:
        return ""
    return f"its disk is {used:.0%} full, and a broker refuses sends above {refuses}%"
