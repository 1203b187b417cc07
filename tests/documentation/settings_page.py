"""The reference pages of settings, from the comments, types and bounds of their fields."""

import os
from typing import Any, get_type_hints
from unittest.mock import patch

import msgspec
from annotated_types import Ge, Gt, Le, Lt
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from tests.documentation.declared import as_sentence, code, field_comments, table, type_text

from reliable_mq import old_names
from reliable_mq.client.settings import ClientSettings
from reliable_mq.settings import ClusterSettings, Settings

HEAD = """# Settings

Give a setting in code, or as a variable. Code wins. This page is made from `reliable_mq.settings`.

```python
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop", database="sqlite:///shop.db", relay_lease_seconds=10.0)
```

```sh
export RELIABLE_MQ_DATABASE=sqlite:///shop.db
export RELIABLE_MQ_RELAY_LEASE_SECONDS=10
```

- A name ends with its unit. A number without a unit counts things.
- In a variable, a list is a JSON array (`[1, 5, 10]`), a dictionary is a JSON object.
- Instead of a variable, a file can have the value: `RELIABLE_MQ_SECRETS_DIR=/run/secrets` names a
  folder. Its file `reliable_mq_database` stands for `RELIABLE_MQ_DATABASE`. A variable wins.
- A wrong value, or a name that does not exist, is one `ConfigurationError`. It names the setting.
- A misspelt variable sets nothing. Each command, and each application that starts, warns of it in
  one line, which has the setting or the option that was meant. Variables that are like none of
  ours, that Kubernetes makes of services, or that have `_TEST_` in their name are left alone.
- Earlier names still work, with a warning. They are at the end of this page.
"""

COMMAND_VARIABLES = """
## Variables of commands

The command line reads these, too. An option that is typed wins.

### RELIABLE_MQ_APP

`MODULE:OBJECT`, such as `shop:mq`: the application that a command means. Set it once, and leave out
`--app MODULE:OBJECT` and the argument: `export RELIABLE_MQ_APP=shop:mq`, then `reliable-mq doctor`.
It wins over `RELIABLE_MQ_DATABASE` and `RELIABLE_MQ_BROKER`, because the application reads those
itself. Code does not read it. Default: none.

### RELIABLE_MQ_LOG_LEVEL

The default of `--log-level`: `debug`, `info`, `warning`, `error` or `critical`. Default `info`.

### RELIABLE_MQ_LOG_FORMAT

The default of `--log-format`: `text` or `json`. Default `text`.

### RELIABLE_MQ_METRICS_HOST

The default of `--metrics-host`: the address at which metrics are served. Default `127.0.0.1`.

### RELIABLE_MQ_CONSOLE_SECRET

Signs sessions. Processes of one console share it. Default: a new one, so everybody logs in again.

### RELIABLE_MQ_CONSOLE_OIDC_SECRET

The default of `--oidc-secret`: of `reliable-mq console` at its provider of OpenID Connect.
"""

CLIENT_HEAD = """# Settings of the client

`ClientSettings` are the settings of a connection to brokers. `Client(address, settings)` takes
them.
An application gives them as `ReliableMQ("shop", client=ClientSettings(retries=3))`, or in the
environment: `RELIABLE_MQ_CLIENT='{"retries": 3}'`.

Most applications change none of them. A number must be positive, or `0` where the text says so.

This page is made from `reliable_mq.client.settings`.
"""

_SIGNS = {Ge: "at least", Gt: "more than", Le: "at most", Lt: "less than"}


def bounds(field: FieldInfo) -> str:
    """Return the bounds of a setting in words; "": none."""
    words = []
    for each in field.metadata:
        for kind, sign in _SIGNS.items():
            if isinstance(each, kind):
                limit = getattr(each, kind.__name__.lower())
                words.append(f"{sign} {limit:.10g}")
        pattern = getattr(each, "pattern", None)
        if pattern:
            words.append(f"`{pattern}`")
    return ", ".join(words)


def default_text(value: object) -> str:
    """Return a default as it is written in code."""
    if isinstance(value, SecretStr):
        return '""'
    if isinstance(value, tuple):
        return ", ".join(f"{each:.10g}" for each in value) or "()"
    if isinstance(value, float):
        return f"{value:.10g}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _sections(kind: type[ClusterSettings], only: set[str]) -> str:
    """Return a section for each setting, so that a link and a search find it."""
    comments = {**field_comments(ClusterSettings), **field_comments(kind)}
    with patch.dict(os.environ, clear=True):
        usual = kind()
    hints = get_type_hints(kind)
    parts = []
    for name, field in kind.model_fields.items():
        if name in only:
            facts = (
                f"Variable `RELIABLE_MQ_{name.upper()}`",
                f"type {code(type_text(hints[name]))}",
                f"default {code(default_text(getattr(usual, name)))}",
                bounds(field),
            )
            shown = ", ".join(filter(None, facts))
            parts.append(f"### {name}\n\n{as_sentence(comments[name])}\n\n{shown}.\n")
    return "\n".join(parts)


def page() -> str:
    """Return the page of all settings of an application."""
    cluster = set(ClusterSettings.model_fields)
    own = set(Settings.model_fields) - cluster
    old = [[code(old), code(new)] for old, new in old_names.SETTINGS.items()]
    return (
        f"{HEAD}\n## The application\n\n{_sections(Settings, own)}"
        f"\n## The cluster\n\n{_sections(Settings, cluster)}"
        f"{COMMAND_VARIABLES}"
        f"\n## Earlier names\n\n{table(('earlier', 'now'), old)}"
    )


def client_page() -> str:
    """Return the page of the settings of a client."""
    comments = field_comments(ClientSettings)
    hints: dict[str, Any] = get_type_hints(ClientSettings)
    rows = [
        [
            code(each.name),
            code(type_text(hints[each.name])),
            code(default_text(each.default)),
            as_sentence(comments[each.name]),
        ]
        for each in msgspec.structs.fields(ClientSettings)
    ]
    old = [[code(old), code(new)] for old, new in old_names.CLIENT_SETTINGS.items()]
    return (
        f"{CLIENT_HEAD}\n{table(('setting', 'type', 'default', 'what it does'), rows)}"
        f"\n## Earlier names\n\n{table(('earlier', 'now'), old)}"
    )
