"""The earlier place of `register_like_postgresql`; see `old_names.PLACES`."""

from functools import partial

from reliable_mq.old_names import moved

__getattr__ = partial(moved, __name__)
