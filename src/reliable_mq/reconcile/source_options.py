"""Options of the data sources: texts that Spark hands over, as values. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from reliable_mq.errors import ConfigurationError

PUSH_FILTERS = "pushFilters"


def check_known(options: Iterable[str], source: str, known: Sequence[str]) -> None:
    """Refuse options that a source does not have: one that is misspelt would do nothing.

    Args:
        options: the names that are given, in any case, as Spark takes them.
        source: its name.
        known: the names of its options.

    Raises:
        ConfigurationError: names the first one, and all that there are.
    """
    lower = {each.lower() for each in known}
    for name in sorted(each for each in options if each.lower() not in lower):
        raise ConfigurationError(f"{source} has no option {name!r}; it has {', '.join(known)}")


def option(options: Mapping[str, str], name: str, otherwise: str | None = None) -> str:
    """Return an option's text.

    Raises:
        ConfigurationError: when it is missing and nothing stands in for it.
    """
    value = options.get(name, otherwise)
    if value is None:
        raise ConfigurationError(f"the option {name!r} is missing")
    return value


def number(options: Mapping[str, str], name: str, otherwise: int) -> int:
    """Return an option's number.

    Raises:
        ConfigurationError: when it is not a whole number above 0.
    """
    value = options.get(name, str(otherwise))
    if not value.isdigit() or int(value) == 0:
        raise ConfigurationError(f"the option {name!r} takes a number above 0, not {value!r}")
    return int(value)


def switch(options: Mapping[str, str], name: str, otherwise: str) -> bool:
    """Return whether an option is on.

    Raises:
        ConfigurationError: when it is neither true nor false.
    """
    value = options.get(name, otherwise).lower()
    if value not in ("true", "false"):
        raise ConfigurationError(f"the option {name!r} is true or false, not {value!r}")
    return value == "true"


def names(options: Mapping[str, str], name: str, otherwise: Sequence[str]) -> list[str]:
    """Return the names that an option lists, with commas between them.

    Raises:
        ConfigurationError: when it lists none, or one twice.
    """
    if name not in options:
        return list(otherwise)
    found = [part.strip() for part in options[name].split(",")]
    if not all(found) or len(set(found)) != len(found):
        raise ConfigurationError(
            f"the option {name!r} takes names with commas between them, each once,"
            f" not {options[name]!r}"
        )
    return found


def share(options: Mapping[str, str], name: str) -> float:
    """Return an option's share of a whole, 1.0 unless it is given.

    Raises:
        ConfigurationError: when it is no number above 0 and at most 1.
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
    """Return an option's moment, ISO 8601 and UTC if no zone is named; None: it is not given.

    Raises:
        ConfigurationError: when it is none.
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
    """Return an option that is one of several words, the first of them when it is not given.

    Raises:
        ConfigurationError: when it is another one.
    """
    value = options.get(name, known[0])
    if value not in known:
        raise ConfigurationError(f"the option {name!r} is one of {', '.join(known)}, not {value!r}")
    return value
