"""Loads the application that MODULE:OBJECT names on the command line."""

import importlib

from reliable_mq.app.application import ReliableMQ
from reliable_mq.errors import ApplicationBroken, ReliableMQError, UsageError, error_text
from reliable_mq.extras import how_to_install

_IMPORTERS = frozenset(
    {
        __file__,
        importlib.__file__,
        "<frozen importlib._bootstrap>",
        "<frozen importlib._bootstrap_external>",
    }
)


def load_application(path: str) -> ReliableMQ:
    """Import the module and return its `ReliableMQ`; `examples.shop:mq`, or a dotted attribute.

    Raises:
        UsageError: the text is not MODULE:OBJECT, or does not name a `ReliableMQ`.
        ApplicationBroken: the module raised an error during its import.
    """
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise UsageError(f"{path!r} is not MODULE:OBJECT; write for example examples.shop:mq")
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module exists, but one of its own imports is missing: report the import.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(module_name, error) from error
        raise UsageError(
            f"there is no module {module_name!r}; run from the directory that contains it"
        ) from error
    except ReliableMQError:  # its text says what is wrong
        raise
    except Exception as error:
        raise _broken(module_name, error) from error
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise UsageError(f"module {module_name!r} has no {attribute!r}") from error
    if not isinstance(found, ReliableMQ):
        raise UsageError(f"{path} is a {type(found).__name__}, not a ReliableMQ")
    found.found_by = f"--app {path}"
    return found


def _broken(module_name: str, error: Exception) -> ApplicationBroken:
    """Return the error of a module that cannot be imported, without frames of the importer.

    Its traceback begins in the first file of the application. Without such a file (a syntax error)
    it has no frames, and the error itself names the file.
    """
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename in _IMPORTERS:
        at = at.tb_next
    text = f"the module {module_name!r} cannot be imported: {error_text(error)}"
    if isinstance(error, ModuleNotFoundError) and (line := how_to_install(error.name or "")):
        text = line
    return ApplicationBroken(text, error.with_traceback(at))
