"""Numbers and names of the protocol are those of Apache's own classes, as its jars have them."""

from configparser import ConfigParser
from pathlib import Path

import pytest

from reliable_mq.wire import properties, record
from reliable_mq.wire.codes import RequestCode, ResponseCode


def apache(*classes: str) -> dict[str, str]:
    """Return what was recorded of these classes."""
    parser = ConfigParser(interpolation=None, delimiters=["="])
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(Path(__file__).with_name("apache_constants.ini"))
    return {name: value.strip('"') for each in classes for name, value in parser[each].items()}


def test_the_codes_of_requests_are_all_that_apache_has() -> None:
    ours = {code.name: str(code.value) for code in RequestCode}
    assert ours == apache("RequestCode")


@pytest.mark.parametrize("code", ResponseCode, ids=lambda code: code.name)
def test_a_reply_has_the_code_that_apache_gives_it(code: ResponseCode) -> None:
    known = apache("RemotingSysResponseCode", "ResponseCode")
    assert known.get(code.name) == str(code.value)


def test_every_property_that_we_name_is_one_of_apaches() -> None:
    """A name that is ours, or that an application sets, stands in `message.py`."""
    ours = {
        value
        for name, value in vars(properties).items()
        if name.isupper() and isinstance(value, str) and not name.endswith("SEPARATOR")
    }
    known = apache("MessageConst")
    theirs = {value for name, value in known.items() if "SEPARATOR" not in name}
    assert ours - theirs == set(), "not Apache's: these names belong into message.py"
    assert len(ours) > 30


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (record.COMPRESSED, "COMPRESSED_FLAG"),
        (record.MULTI_TAGS, "MULTI_TAGS_FLAG"),
        (record.TRANSACTION_NONE, "TRANSACTION_NOT_TYPE"),
        (record.TRANSACTION_PREPARED, "TRANSACTION_PREPARED_TYPE"),
        (record.TRANSACTION_COMMIT, "TRANSACTION_COMMIT_TYPE"),
        (record.TRANSACTION_ROLLBACK, "TRANSACTION_ROLLBACK_TYPE"),
        (record.TRANSACTION_MASK, "TRANSACTION_ROLLBACK_TYPE"),
        (record.BORN_HOST_V6, "BORNHOST_V6_FLAG"),
        (record.STORE_HOST_V6, "STOREHOSTADDRESS_V6_FLAG"),
    ],
)
def test_a_record_is_flagged_as_apache_flags_it(ours: int, name: str) -> None:
    assert apache("MessageSysFlag")[name] == str(ours)
