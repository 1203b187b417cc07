"""What a program has at hand, and no message can carry: rows of an ORM, requests, files. Pure.

Receives a type; returns what to send instead. It knows the types by the names of their bases, so no
framework is imported.
"""

from functools import lru_cache

_ROW = "send its id, and load the row in the handler"
_ROWS = "send a list of the ids, and load the rows in the handler"
_QUERY = 'send its ids, list(….values_list("id", flat=True)), and load the rows in the handler'
_REQUEST = "send the fields of the request that the handler needs"
_FILE = "store the file, and send its name"
_LAZY = "send str(…) of a lazy text"
_TRANSIENT = {
    "django.db.models.base.Model": _ROW,
    "peewee.Model": _ROW,
    "tortoise.models.Model": _ROW,
    "django.db.models.query.QuerySet": _QUERY,
    "django.db.models.manager.BaseManager": _QUERY,
    "sqlalchemy.orm.query.Query": _ROWS,
    "sqlalchemy.engine.result.Result": _ROWS,
    "sqlalchemy.engine.result.ScalarResult": _ROWS,
    "django.http.request.HttpRequest": _REQUEST,
    "starlette.requests.HTTPConnection": _REQUEST,
    "werkzeug.sansio.request.Request": _REQUEST,
    "litestar.connection.base.ASGIConnection": _REQUEST,
    "django.core.files.base.File": _FILE,
    "starlette.datastructures.UploadFile": _FILE,
    "werkzeug.datastructures.file_storage.FileStorage": _FILE,
    "io.IOBase": _FILE,
    "_io._IOBase": _FILE,
    "django.utils.functional.Promise": _LAZY,
}
"""The base of a type, by module and name -> what to do."""


@lru_cache(maxsize=1024)
def other_form(kind: type) -> str:
    """Return what to send instead of an object of this type; "": nothing is known."""
    bases = kind.__mro__
    for each in bases:
        if known := _TRANSIENT.get(f"{each.__module__}.{each.__qualname__}"):
            return known
    # A mapped class of SQLAlchemy. One that is a dataclass, too, can be written and read.
    marks = {name for each in bases for name in vars(each)}
    return _ROW if "__mapper__" in marks and "__dataclass_fields__" not in marks else ""


def is_row(kind: type) -> bool:
    """Return whether objects of this type are rows of an ORM."""
    return other_form(kind) == _ROW


def instead(kind: type) -> str:
    """Return the end of an error's text: what to send instead, or ""."""
    form = other_form(kind)
    return form and f": {form}"
