"""Messages with one ordering key are handled one at a time and in order, also when one fails.

Two patients, three steps each, sent in one transaction. Ada's first step fails twice; her later
steps wait for it, and Ben's do not.
"""

from collections import defaultdict
from threading import Barrier, Lock

from reliable_mq import ReliableMQ, Retry

mq = ReliableMQ("clinic", broker="embedded:broker", database="sqlite:///clinic.db")
done: defaultdict[str, list[str]] = defaultdict(list)
failures = [Retry(after=0.2), Retry(after=0.2)]
lock = Lock()
both_finished = Barrier(3, timeout=60)


@mq.consumer("steps", group="ward")
def do_step(step: dict[str, str]) -> None:
    """Do one step of a patient's treatment."""
    if step == {"patient": "Ada", "what": "examine"} and failures:
        raise failures.pop()
    with lock:
        done[step["patient"]].append(step["what"])
    if step["what"] == "go home":
        both_finished.wait()


mq.create_tables()
with mq:
    with mq.transaction() as tx:
        for what in ("examine", "treat", "go home"):
            for patient in ("Ada", "Ben"):
                tx.send("steps", {"patient": patient, "what": what}, ordering_key=patient)
    both_finished.wait()

for patient in sorted(done):
    print(patient, *done[patient], sep=", ")
