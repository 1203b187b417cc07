"""What ended a run of Spark, in one line: the innermost error, and what to do where we know it.

Receives the text of an error of Spark or of the bridge to Java: a stack trace of both languages.
"""

import re

_JAVA_OR_PYTHON_ERROR = re.compile(
    r"^(?:: |Caused by: )?[\w.$]*(?:Error|Exception): (.+)$", re.MULTILINE
)
_MORE_MEMORY = (
    "give it more (--memory 8g; on a cluster spark.executor.memory), or a shorter --since"
)
# The first pattern that is found decides.
_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"must be at least \d+"),
        f"Spark has too little memory to begin with: {_MORE_MEMORY}",
    ),
    (
        re.compile(
            r"OutOfMemoryError|Java heap space|GC overhead limit exceeded|MemoryError"
            # Under a limit of addresses (`ulimit -v`) not even a library may fit.
            r"|[Cc]annot allocate memory|failed to map segment|bad_alloc"
        ),
        f"Spark ran out of memory: {_MORE_MEMORY}",
    ),
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        "no space left on device: the disk of --out, or of Spark's own folder (TMPDIR), is full",
    ),
    (
        re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|ERROR_EXIT_CODE"),
        f"a worker of Spark was killed, as by a machine that is out of memory: {_MORE_MEMORY}",
    ),
    (
        re.compile(
            r"Answer from Java side is empty|Error while (?:sending|receiving)"
            r"|trying to connect to the Java server"
            # Alone it is of the bridge to Java; a database or a namenode that refuses is named.
            r"|\A\[Errno \d+\] (?:Connection refused|Connection reset by peer|Broken pipe)\Z"
        ),
        f"Spark's Java ended in the middle, as on a machine that is out of memory: {_MORE_MEMORY}",
    ),
    (
        re.compile(r"JAVA_GATEWAY_EXITED"),
        "Spark's Java did not start; what it said stands above",
    ),
)


def cause(text: str) -> str:
    """Return what ended a run, in one line."""
    for pattern, says in _KNOWN:
        if pattern.search(text):
            return says
    causes: list[str] = _JAVA_OR_PYTHON_ERROR.findall(text)
    if len(causes) > 1 and causes[-1] == "Connection refused":
        causes.pop()  # Java says only around it who refused
    return f"Spark: {causes[-1] if causes else text.splitlines()[0]}"
