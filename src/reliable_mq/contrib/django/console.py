"""Who of a Django project may use a mounted console: the staff, by the log-in of the admin."""

from importlib import import_module
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib import auth
from django.db import close_old_connections
from django.http import HttpRequest

from reliable_mq.console.users import Role

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

PERMISSION = "reliable_mq.settle_messages"


def staff(request: "HTTPConnection") -> tuple[str, Role] | None:
    """Return the name and the role of who asks; None: they are not of the staff.

    A superuser is an admin. The permission `reliable_mq.settle_messages`, which the actions of
    Django's admin need, too, makes an operator. Other people of the staff look.
    """
    key = request.cookies.get(settings.SESSION_COOKIE_NAME, "")
    if not key:
        return None
    asking = HttpRequest()
    asking.session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    close_old_connections()  # the threads of the console are not those of Django's requests
    try:
        user = auth.get_user(asking)
        if not (user.is_active and getattr(user, "is_staff", False)):
            return None
        name = user.get_username()
        if getattr(user, "is_superuser", False):
            return name, Role.ADMIN
        may = user.has_perm(PERMISSION)
        return name, Role.OPERATOR if may else Role.VIEWER
    finally:
        close_old_connections()
