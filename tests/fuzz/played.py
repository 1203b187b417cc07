"""What became of a case of the fuzzer."""

import msgspec


class Played(msgspec.Struct):
    """What became of a case: the finding ("" for none), and the most that it cost.

    `seconds` is the work of the case; with real servers, the longest delay of a bystander. `memory`
    is in bytes. `is_late` says that the finding is a delay: it has to show twice.
    """

    finding: str = ""
    seconds: float = 0.0
    memory: int = 0
    is_late: bool = False
