"""What type checkers see of options agrees with what is there at run time."""

import inspect
from typing import Any, get_args, get_type_hints

import pytest

from reliable_mq import ReliableMQ, Topic, injected
from reliable_mq.configuration.setting_options import AllSettingOptions, SettingOptions
from reliable_mq.console.application import ConsoleOptions, console_app
from reliable_mq.console.http_oidc import OidcSettings
from reliable_mq.consume.handler_types import ConsumerOptions, TopicOptions
from reliable_mq.errors import UsageError
from reliable_mq.settings import Settings

OWN_PARAMETERS = {"broker", "database", "databases", "redis", "client"}


def test_the_typed_settings_are_the_fields_of_settings() -> None:
    fields = Settings.model_fields.keys()

    assert get_type_hints(AllSettingOptions).keys() == fields
    assert get_type_hints(SettingOptions).keys() == fields - OWN_PARAMETERS


@pytest.mark.parametrize("name", get_type_hints(SettingOptions))
def test_a_typed_setting_has_the_type_of_its_field(name: str) -> None:
    """Beside it, it may take what pydantic makes that type of: a text or a list."""
    field: Any = Settings.model_fields[name].annotation
    typed: Any = get_type_hints(SettingOptions)[name]

    made = {f"tuple[{each}, ...]": f"Sequence[{each}]" for each in ("float", "str")}
    made["SecretStr"] = "SecretStr | str"
    shown = getattr(field, "__name__", str(field)) if not get_args(field) else str(field)
    wanted = made.get(shown, shown)
    found = str(typed).replace("pydantic.types.", "").replace("collections.abc.", "")
    assert found.removeprefix("<class '").removesuffix("'>") == wanted


def test_the_typed_options_of_a_consumer_are_its_parameters() -> None:
    typed = get_type_hints(ConsumerOptions)
    hints = get_type_hints(ReliableMQ.consumer)
    parameters = list(inspect.signature(ReliableMQ.consumer).parameters.values())[2:]

    assert typed == {each.name: hints[each.name] for each in parameters}
    required = {each.name for each in parameters if each.default is each.empty}
    assert ConsumerOptions.__required_keys__ == required


def test_the_typed_options_of_a_topic_are_its_parameters() -> None:
    hints = get_type_hints(ReliableMQ.topic)
    parameters = list(inspect.signature(ReliableMQ.topic).parameters)[3:]

    assert get_type_hints(TopicOptions) == {each: hints[each] for each in parameters}


def test_the_typed_options_of_a_console_are_its_parameters() -> None:
    of_an_extra = {"OidcSettings": OidcSettings}
    hints = get_type_hints(console_app, localns=of_an_extra)
    parameters = list(inspect.signature(console_app).parameters)[1:]

    typed = get_type_hints(ConsoleOptions, localns=of_an_extra)
    assert typed == {each: hints[each] for each in parameters}


def test_a_topic_with_a_payload_type_is_shown_by_its_name() -> None:
    mq = ReliableMQ("shop")

    topic = mq.topic("orders", payload=dict[str, int], groups=["payments"])
    assert topic == Topic("orders", dict[str, int])
    assert f"{topic}" == topic.name == "orders"
    assert mq.groups_of(topic) == mq.groups_of("orders") == ("payments",)
    assert mq.topic("orders") == "orders"


def test_a_type_that_no_payload_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match="topic orders: no payload can be"):
        ReliableMQ("shop").topic("orders", payload=lambda: 7)  # type: ignore[call-overload]


def test_a_filled_parameter_with_its_default_is_shown_by_its_name() -> None:
    assert repr(injected) == "injected"
