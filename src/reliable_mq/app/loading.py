"""Loads the application that MODULE:OBJECT names on the command line."""

import importlib
from collections.abc import Iterable
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, extract_tb

from reliable_mq.app.application import ReliableMQ
from reliable_mq.errors import ApplicationBroken, ReliableMQError, UsageError, error_text
from reliable_mq.extras import how_to_install
from reliable_mq.own_frames import is_foreign, is_own
from reliable_mq.settings import VARIABLE_PREFIX

_MANAGE = Path("manage.py")


def load_application(path: str) -> ReliableMQ:
    """Import the module and return its `ReliableMQ`; `examples.shop:mq`, or a dotted attribute.

    Raises:
        UsageError: the text is not MODULE:OBJECT, or does not name a `ReliableMQ`.
        ApplicationBroken: the module raised an error during its import.
    """
    module_name, colon, attribute = path.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        module = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"{path!r} names a file: give its module, {module}:{attribute or 'mq'}")
    if not (module_name and colon and attribute):
        raise UsageError(f"{path!r} is not MODULE:OBJECT; write {_meant(path, module_name)}")
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module exists, but one of its own imports is missing: report the import.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(module_name, error) from error
        raise UsageError(
            f"there is no module {module_name!r}; "
            f"{in_django_project() or 'run from the directory that contains it'}"
        ) from error
    except ReliableMQError as error:  # its text says what is wrong
        # No line of code is at fault if a variable is.
        if not str(error).startswith(VARIABLE_PREFIX) and (place := own_place(error)):
            error.place = place
        raise
    except SystemExit as error:
        raise UsageError(
            f"the module {module_name!r} ends the process while it is imported"
            f" (sys.exit({error.code!r})): put that below `if __name__ == '__main__':`"
        ) from error
    except Exception as error:
        raise _without_django(error) or _broken(module_name, error) from error
    known = _applications(module_name, found)
    found = _named(found, module_name, attribute, known)
    if not isinstance(found, ReliableMQ):
        raise UsageError(f"{path} is of type {type(found).__name__}, not a ReliableMQ{known}")
    found.found_by = f"--app {path}"
    return found


def _meant(path: str, module_name: str) -> str:
    """Return the application that a person means who wrote shop.mq, or an example."""
    module, _, name = path.strip(":.").rpartition(".")
    if module:
        try:
            if isinstance(getattr(importlib.import_module(module), name, None), ReliableMQ):
                return f"{module}:{name}"
        except (Exception, SystemExit):  # noqa: BLE001, S110 - whatever it is, it is not meant
            pass
    return f"for example {module_name.strip('.') or 'shop'}:mq"


def _applications(module_name: str, module: object) -> str:
    """Return the end of an error's text: which applications a module has."""
    names = [name for name, value in vars(module).items() if isinstance(value, ReliableMQ)]
    if not names:
        return f"; {in_django_project() or 'it has none: write mq = ReliableMQ(…) there'}"
    return f"; it has {', '.join(f'{module_name}:{name}' for name in names)}"


def _named(found: object, module_name: str, attribute: str, known: str) -> object:
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise UsageError(f"module {module_name!r} has no {attribute!r}{known}") from error
        except Exception as error:
            raise _without_django(error) or error from error
    return found


def in_django_project() -> str:
    """Return how a command finds the application in a project of Django; "": this is none."""
    if not _MANAGE.is_file() or "DJANGO_SETTINGS_MODULE" not in _MANAGE.read_text("utf-8"):
        return ""
    return (
        "in a project of Django leave MODULE:OBJECT out: write python manage.py reliable_mq …, "
        "such as python manage.py reliable_mq run"
    )


def _without_django(error: Exception) -> UsageError | None:
    """Return what to do if Django does not know the settings of the project; None: that is not it.

    Django itself may not be installed, so its error is known by its name.
    """
    if type(error).__name__ != "ImproperlyConfigured" or "DJANGO_SETTINGS_MODULE" not in str(error):
        return None
    return UsageError(
        "Django does not know the settings of this project: run python manage.py reliable_mq …, or "
        "set DJANGO_SETTINGS_MODULE"
    )


def _broken(module_name: str, error: Exception) -> ApplicationBroken:
    """Return the error of a module that cannot be imported; `own_traceback` shows its frames."""
    text = f"the module {module_name!r} cannot be imported: {error_text(error)}"
    if isinstance(error, ModuleNotFoundError) and (line := how_to_install(error.name or "")):
        text = line
    return ApplicationBroken(text, error)


def own_traceback(error: BaseException) -> str:
    """Return the traceback of an error with the frames of the application only.

    Frames of this package, of the importer and of installed packages are left out. Without a frame
    (a syntax error), the error itself names the file.
    """
    shown = TracebackException.from_exception(error)
    pending: list[TracebackException | None] = [shown]
    while pending:
        each = pending.pop()
        if each is not None:
            each.stack = StackSummary.from_list(_own(each.stack))
            pending += [each.__cause__, each.__context__]
    return "".join(shown.format())


def own_place(error: BaseException) -> str:
    """Return the line of the application that raised an error, "shop.py:12"; "": unknown."""
    frames = _own(extract_tb(error.__traceback__))
    if not frames:
        return ""
    path, here = Path(frames[-1].filename), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{frames[-1].lineno}"


def _own(frames: Iterable[FrameSummary]) -> list[FrameSummary]:
    """Return the frames of the application, which may be an installed package itself."""
    others = [each for each in frames if not is_foreign(each.filename)]
    return [each for each in others if is_own(each.filename)] or others
