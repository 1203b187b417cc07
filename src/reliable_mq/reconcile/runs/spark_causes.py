"""Describe in one line why Spark ended a run: the innermost error, and what to do if it is known.

Receives the text of an error from Spark or from the bridge to Java, with stack traces of both.
"""

import re

_JAVA_OR_PYTHON_ERROR = re.compile(
    r"^(?:: |Caused by: )?[\w.$]*(?:Error|Exception): (.+)$", re.MULTILINE
)
_MORE_MEMORY = (
    "give it more (--memory 8g; on a cluster spark.executor.memory), or a shorter --since"
)
# The first matching pattern decides.
_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"must be at least \d+"),
        f"Spark has too little memory to start: {_MORE_MEMORY}",
    ),
    (
        re.compile(
            r"OutOfMemoryError|Java heap space|GC overhead limit exceeded|MemoryError"
            # With a limit of virtual memory (`ulimit -v`), even a library may not fit.
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
        f"a worker of Spark was killed, probably because memory ran out: {_MORE_MEMORY}",
    ),
    (
        re.compile(r"Python worker failed to connect back"),
        "a worker of Spark did not start within ten seconds, as on a busy machine: run it again",
    ),
    (
        re.compile(
            r"Answer from Java side is empty|Error while (?:sending|receiving)"
            r"|trying to connect to the Java server"
            # Without further text it is from the bridge to Java. A database or a namenode that
            # refuses is named in the text.
            r"|\A\[Errno \d+\] (?:Connection refused|Connection reset by peer|Broken pipe)\Z"
        ),
        f"Spark's Java ended, probably because memory ran out: {_MORE_MEMORY}",
    ),
    (
        re.compile(r"JAVA_GATEWAY_EXITED"),
        "Spark's Java did not start; see its output above",
    ),
)


def cause(text: str) -> str:
    """Return the reason why a run ended, in one line."""
    for pattern, says in _KNOWN:
        if pattern.search(text):
            return says
    causes: list[str] = _JAVA_OR_PYTHON_ERROR.findall(text)
    if len(causes) > 1 and causes[-1] == "Connection refused":
        causes.pop()  # only the outer error names the server that refused
    return f"Spark: {causes[-1] if causes else text.splitlines()[0]}"
