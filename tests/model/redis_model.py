"""What `claim.lua` and `settle.lua` do to one key, as functions of values.

`test_model` holds them against the scripts in a real server, move by move.
"""

from tests.model.state import NOBODY, Key

from reliable_mq.idempotency.claim import Claim, LeaseAnswer

ABSENT = Key()
DONE = Key(is_done=True)


def claimed(key: Key, token: int) -> tuple[Claim, Key]:
    """Return the answer to a claim of `token`, and the key after it."""
    if key.is_done:
        return Claim(LeaseAnswer.DONE), key
    is_others = key.owner not in (NOBODY, token)
    if is_others and key.is_alive:
        return Claim(LeaseAnswer.HELD, attempt=key.attempt, wait=1.0), key
    attempt = key.attempt if key.owner == token else key.attempt + 1
    word = LeaseAnswer.AGAIN if attempt > 1 else LeaseAnswer.FIRST
    after = Key(attempt=attempt, owner=token, is_alive=True)
    return Claim(word, attempt=attempt, in_doubt=is_others), after


def settled(key: Key, token: int, fate: str) -> Key:
    """Return the key after the holder of `token` has said what became of its claim."""
    if fate == "done":
        return DONE
    if key.is_done or key.owner != token:
        return key
    if fate == "back" and key.attempt > 1:
        return Key(attempt=key.attempt - 1)
    return ABSENT
