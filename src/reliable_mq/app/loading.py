"""MODULE:OBJECT to the application it names, as the command line gives it."""

import importlib

from reliable_mq.app.application import ReliableMQ
from reliable_mq.errors import UsageError


def load_application(path: str) -> ReliableMQ:
    """Import the module and return its `ReliableMQ`; `examples.shop:mq`, or a dotted attribute.

    Raises:
        UsageError: when the text is no MODULE:OBJECT, or names nothing of the kind.
    """
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise UsageError(f"{path!r} is no MODULE:OBJECT; write for example examples.shop:mq")
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that is there and misses one of its own imports tells that itself.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"there is no module {module_name!r}; run from the directory that holds it"
        ) from error
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise UsageError(f"module {module_name!r} has no {attribute!r}") from error
    if not isinstance(found, ReliableMQ):
        raise UsageError(f"{path} is a {type(found).__name__}, not a ReliableMQ")
    return found
