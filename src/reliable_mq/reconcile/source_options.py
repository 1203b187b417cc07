"""Parser of the options of the data sources: texts from Spark become values. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from reliable_mq.errors import ConfigurationError

PUSH_FILTERS = "pushFilters"


def check_known(options: Iterable[str], source: str, known: Sequence[str]) -> None:
    """Refuse unknown options: a misspelt option would have no effect.

    Args:
        options: the given names. As in Spark, capital and small letters do not differ.
        source: the name of the source.
        known: the names of its options.

    Raises:
        ConfigurationError: names the first unknown option, and all known ones.
    """
    lower = {each.lower() for each in known}
    for name in sorted(each for each in options if each.lower() not in lower):
        raise ConfigurationError(f"{source} has no option {name!r}; it has {', '.join(known)}")


def option(options: Mapping[str, str], name: str, otherwise: str | None = None) -> str:
    """Return the text of an option, or `otherwise` if it is not given.

    Raises:
        ConfigurationError: when it is missing and `otherwise` is None.
    """
    value = options.get(name, otherwise)
    if value is None:
        raise ConfigurationError(f"the option {name!r} is missing")
    return value


def number(options: Mapping[str, str], name: str, otherwise: int) -> int:
    """Return the number of an option, or `otherwise` if it is not given.

    Raises:
        ConfigurationError: when it is not a whole number above 0.
    """
    value = options.get(name, str(otherwise))
    if not value.isdigit() or int(value) == 0:
        raise ConfigurationError(f"the option {name!r} takes a number above 0, not {value!r}")
    return int(value)


def switch(options: Mapping[str, str], name: str, otherwise: str) -> bool:
    """Return whether an option is true. `otherwise` is its text if it is not given.

    Raises:
        ConfigurationError: when it is neither true nor false.
    """
    value = options.get(name, otherwise).lower()
    if value not in ("true", "false"):
        raise ConfigurationError(f"the option {name!r} is true or false, not {value!r}")
    return value == "true"


def names(options: Mapping[str, str], name: str, otherwise: Sequence[str]) -> list[str]:
    """Return the names of a list that commas separate, or `otherwise` if it is not given.

    Raises:
        ConfigurationError: when a name is empty or occurs twice.
    """
    if name not in options:
        return list(otherwise)
    found = [part.strip() for part in options[name].split(",")]
    if not all(found) or len(set(found)) != len(found):
        raise ConfigurationError(
            f"the option {name!r} takes names separated by commas, each of them only once,"
            f" not {options[name]!r}"
        )
    return found


def share(options: Mapping[str, str], name: str) -> float:
    """Return the share that an option gives, default 1.0.

    Raises:
        ConfigurationError: when it is no number above 0 and up to 1.
    """
    value = options.get(name, "1")
    try:
        number_of_it = float(value)
    except ValueError:
        number_of_it = 0.0
    if not 0 < number_of_it <= 1:
        raise ConfigurationError(
            f"the option {name!r} takes a number above 0, at most 1, not {value!r}"
        )
    return number_of_it


def moment(options: Mapping[str, str], name: str) -> datetime | None:
    """Return the moment of an option: ISO 8601, in UTC if it has no zone. None: it is not given.

    Raises:
        ConfigurationError: when it is no moment.
    """
    value = options.get(name)
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise ConfigurationError(
            f"the option {name!r} takes a time like 2026-11-20T08:00 (UTC), not {value!r}"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def one_of(options: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    """Return an option that is one of several words. Default: the first one.

    Raises:
        ConfigurationError: when it is another word.
    """
    value = options.get(name, known[0])
    if value not in known:
        raise ConfigurationError(f"the option {name!r} is one of {', '.join(known)}, not {value!r}")
    return value
