"""Pydantic's settings with fields that had other names before.

Receives the values of keywords, the environment and files. Passes them to pydantic under the
current names, so that the nearer source wins whichever name it uses. It knows no single setting.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsError,
)

from reliable_mq import old_names
from reliable_mq.errors import ConfigurationError

_written: ContextVar[dict[str, str]] = ContextVar("reliable_mq_names_written")
"""Of the settings that are being made: new name -> the name that the nearest source used."""


class RenamedSettings(BaseSettings):
    """Settings whose old names are read from every source, and as attributes.

    One warning for each old name and source: `DeprecationWarning` for keywords and attributes,
    `FutureWarning` for variables and files.

    Raises:
        ConfigurationError: when one source gives a setting by both of its names; also when a
            subclass declares a field by an old name.
    """

    #: old name -> new name of fields
    renamed: ClassVar[Mapping[str, str]] = {}
    #: field that is a dictionary of other settings -> their old name -> their new name
    renamed_inside: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    @classmethod
    def settings_customise_sources(
        cls, *given: Any, **named: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return pydantic's sources; each of them also reads old names."""
        sources = super().settings_customise_sources(*given, **named)
        return tuple(_reading_old_names(each) for each in sources)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        for old, new in cls.renamed.items():
            if old in cls.model_fields:
                sentence = old_names.now_called(old, new)
                raise ConfigurationError(f"{cls.__name__} declares the field {old}: {sentence}")
        chosen = vars(cls).get("settings_customise_sources")
        if chosen is not None:  # sources that a subclass chooses read old names, too
            cls.settings_customise_sources = classmethod(  # type: ignore[method-assign, assignment]
                lambda own, *given, **named: tuple(
                    _reading_old_names(each) for each in chosen.__func__(own, *given, **named)
                )
            )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; as in pydantic, updated values are not checked."""
        return super().model_copy(update=self._read(update or {}), deep=deep)

    @classmethod
    def _read(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        found = old_names.read(given, cls.renamed, old_names.warn_caller)
        return _read_inside(cls, found, old_names.warn_caller)

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """Restore a pickle, also one of a release with the old names."""
        values, kind = state.get("__dict__", {}), type(self)
        values = old_names.read(values, kind.renamed, old_names.warn_nobody)
        values = _read_inside(kind, values, old_names.warn_nobody)
        given = {kind.renamed.get(name, name) for name in state.get("__pydantic_fields_set__", ())}
        state = {**state, "__dict__": values, "__pydantic_fields_set__": given}
        super().__setstate__(state)

    if not TYPE_CHECKING:  # type checkers only see the current names

        def __init__(self, /, **given: Any) -> None:
            """Read all sources; see pydantic's `BaseSettings`."""
            names: dict[str, str] = {}
            before = _written.set(names)
            try:
                super().__init__(**given)
            except ValidationError as error:
                written = {new: name for new, name in names.items() if name != new}
                if not written:
                    raise
                is_hidden = bool(self.model_config.get("hide_input_in_errors"))
                raise _as_written(error, written, is_hidden) from None
            finally:
                _written.reset(before)

        @classmethod
        def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:
            """Return settings of unchecked values, without other sources."""
            if _fields_set is not None:
                _fields_set = {cls.renamed.get(name, name) for name in _fields_set}
            return super().model_construct(_fields_set, **cls._read(values))

        def __getattr__(self, name: str) -> Any:
            new = type(self).renamed.get(name)
            if new is None:
                return super().__getattr__(name)
            old_names.warn_caller(f"{type(self).__name__}.{old_names.now_called(name, new)}")
            return getattr(self, new)


def _reading_old_names(source: PydanticBaseSettingsSource) -> PydanticBaseSettingsSource:
    """Let a source read old names, too. Its class stays a subclass: pydantic checks it."""
    if isinstance(source, PydanticBaseSettingsSource):  # any callable may be a source
        source.__class__ = _kind_with_old_names(type(source))
    return source


@cache
def _kind_with_old_names(kind: type[Any]) -> type[Any]:
    if "_reads_old_names" in vars(kind):
        return kind

    def call(source: Any, *given: Any, **named: Any) -> Any:
        found = kind.__call__(source, *given, **named)
        return _in_new_names(source, found) if isinstance(found, dict) else found

    space = {"__module__": kind.__module__, "__call__": call, "_reads_old_names": True}
    return type(kind.__name__, (kind,), space)


def _in_new_names(source: PydanticBaseSettingsSource, found: dict[str, Any]) -> dict[str, Any]:
    kind: Any = source.settings_cls
    written: dict[str, str] = {}
    if isinstance(source, EnvSettingsSource | SecretsSettingsSource):
        found = _with_old_variables(source, kind, found, written)
        warn, prefix = old_names.warn_operator, source.env_prefix.upper()
    else:
        is_code = (
            InitSettingsSource in type(source).__bases__
        )  # readers of files are subclasses of it
        warn, prefix = old_names.warn_caller if is_code else old_names.warn_operator, ""
        written = old_names.written_in(found, kind.renamed)
        found = old_names.read(found, kind.renamed, warn)
    names = _written.get({})
    for new in found:  # the nearest source is called first
        names.setdefault(new, written.get(new, new))
    return _read_inside(kind, found, warn, prefix)


def _with_old_variables(
    source: EnvSettingsSource | SecretsSettingsSource,
    kind: Any,
    found: dict[str, Any],
    written: dict[str, str],
) -> dict[str, Any]:
    """Return `found`, with the values of variables or secret files that have old names."""
    if isinstance(source, SecretsSettingsSource) and not getattr(source, "secrets_paths", None):
        return found
    prefix = source.env_prefix
    found = {  # a .env file also returns unknown names
        name: value
        for name, value in found.items()
        if name.lower().removeprefix(prefix.lower()) not in kind.renamed
    }
    for old, new in kind.renamed.items():
        field = kind.model_fields[new]
        value, _, is_complex = source.get_field_value(field, old)
        if value is None:
            continue
        variable, now = ((prefix + name).upper() for name in (old, new))
        if new in found:
            raise old_names.refuse_both(variable, now)
        old_names.warn_operator(old_names.now_called(variable, now))
        try:
            found[new] = source.prepare_field_value(old, field, value, is_complex)
        except ValueError as error:
            place = f'field "{old}" (now "{new}") from source "{type(source).__name__}"'
            raise SettingsError(f"error parsing value for {place}") from error
        written[new] = old
    return found


def _read_inside(
    kind: type[RenamedSettings], found: dict[str, Any], warn: old_names.Warn, prefix: str = ""
) -> dict[str, Any]:
    """Return `found`, with the new names inside fields that hold other settings."""
    for name, names in kind.renamed_inside.items():
        inside = found.get(name)
        if isinstance(inside, Mapping):
            place = f"{prefix}{name.upper() if prefix else name}: "
            found = {**found, name: old_names.read(inside, names, warn, place)}
    return found


def _as_written(
    error: ValidationError, written: Mapping[str, str], is_hidden: bool
) -> ValidationError:
    """Return the error with the names that the user wrote, and with hints of the new names."""
    lines: list[InitErrorDetails] = []
    for each in error.errors(include_url=False):
        place, text = each["loc"], old_names.as_written(each["msg"], written)
        if place and place[0] in written:
            old, new = written[str(place[0])], str(place[0])
            place, text = (old, *place[1:]), f"{text}; {old_names.now_called(old, new)}"
        kind = PydanticCustomError(each["type"], text)
        lines.append(InitErrorDetails(type=kind, loc=place, input=each["input"]))
    return ValidationError.from_exception_data(error.title, lines, hide_input=is_hidden)
