"""A broker's answer in words for a person: what is not there, and which command lists what is."""

import re

from reliable_mq.errors import RemoteError
from reliable_mq.runtime.tls_remedies import tls_remedy
from reliable_mq.wire.codes import ResponseCode

_LISTS = {
    ResponseCode.TOPIC_NOT_EXIST: ("topic", "topic list"),
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: ("consumer group", "group list"),
}

_NOWHERE = {
    "no broker has group ": "group list",
    "no broker has topic ": "topic list",
    "no name server knows topic ": "topic list",
}


_ACCOUNT_FAULTS = re.compile(
    r"check signature failed|username cannot be null|User:.* is (not found|disabled)"
)


def name_server_hint(text: str) -> str:
    """Return what to do if no name server answers; `text` says how each of them failed."""
    return tls_remedy(text) or "start one (reliable-mq broker), or correct the address"


def words_of(error: BaseException) -> str:
    """Return an error's text in one line; instead of a code that says what is missing, words."""
    text = " ".join(str(error).split()) or type(error).__name__
    for beginning, command in _NOWHERE.items():
        if text.startswith(beginning):
            return f"{text}; see reliable-mq {command}"
    if not isinstance(error, RemoteError) or not text.startswith("code "):
        return text
    if "RELIABLE_MQ_ACCESS_KEY" in error.remark:
        return text
    remark = " ".join(error.remark.split()).rstrip(".")
    for code, (what, command) in _LISTS.items():
        if error.code == code:
            return f"there is no such {what} ({remark}); see reliable-mq {command}"
    if error.code == ResponseCode.NO_PERMISSION and _ACCOUNT_FAULTS.search(remark):
        return (
            f"the account is refused ({remark}): set RELIABLE_MQ_ACCESS_KEY and"
            " RELIABLE_MQ_SECRET_KEY to those of a user of the broker"
        )
    return text
