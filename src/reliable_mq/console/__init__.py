"""The console: pages for the people on call. Is anything wrong, where is a message, what to do.

Receives requests of browsers. Returns pages, which need no script to be read. What a page shows or
does is a function of another package, which a command calls, too. The console keeps nothing.

- `application`: `console_app` and `mount`. `guard`: who may, and the headers of every answer.
- `sources`: databases, cluster and runs, each with the age of what is known.
- `lists`: the pattern of a list; `list_…` are the lists.
"""

from reliable_mq.console.application import console_app, mount

__all__ = ["console_app", "mount"]
