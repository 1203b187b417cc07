"""Templates of send requests: the common part of a queue's requests, with forms for the rest.

Receives how a request is made of marks: numbers that stand for its variable fields. Returns the
bytes around them. Does not know which fields a request has, nor how messages are rendered.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from reliable_mq.client.connecting.signature import Signing
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.command import Command, encode_command
from reliable_mq.wire.frame import HEAD_SIZE
from reliable_mq.wire.java_int import I32_MAX
from reliable_mq.wire.request_signature import SIGNATURE, signed_fields

_FIRST_MARK = 1_000_000_000  # as long as the longest opaque; all marks have the same length
_MARKS = 5  # born time, flag, properties, opaque, signature


class Template(NamedTuple):
    """The requests for a queue.

    Attributes:
        front: their header before the opaque, with forms for born time, flag and properties; and
            for the signature, if they are signed.
        back: their header behind the opaque.
        content: what is signed before the body, with the same three forms. b"": nobody signs.
    """

    front: bytes
    back: bytes
    content: bytes


def cut_template(made: Callable[[int, int, int], Command], signing: Signing | None) -> Template:
    """Return the template of requests.

    The variable fields are found by marks that occur nowhere else. Names of topics and groups might
    contain any number, so several are tried.

    Args:
        made: makes a request without a body of a born time, a flag and a number as its properties.
        signing: signs requests; None: nobody does.
    """
    for first in range(_FIRST_MARK, I32_MAX, _MARKS):
        born, flag, properties, opaque, signature = range(first, first + _MARKS)
        command = made(born, flag, properties)
        command.opaque = opaque
        content: bytes | None = b""
        common = {b"%d" % born: b"%d", b"%d" % flag: b"%d"}
        forms = {**common, b'"%d"' % properties: b"%b"}
        if signing is not None:
            signing(command)
            signed = "".join(signed_fields(command.ext_fields, command.version).values())
            marks = {**common, b"%d" % properties: b"%b"}
            content = _form_of(signed.encode("utf-8", "replace"), marks)
            command.ext_fields[SIGNATURE] = str(signature)
            forms[b"%d" % signature] = b"%b"
        header, number = encode_command(command)[HEAD_SIZE:], b"%d" % opaque
        front, _, back = header.partition(number)
        form = _form_of(front, forms)
        if form is not None and content is not None and number not in back:
            return Template(form, back, content)
    raise InvariantBroken("the names of a queue contain every possible mark")


def _form_of(text: bytes, forms: Mapping[bytes, bytes]) -> bytes | None:
    """Return a text with forms at its marks; None: a mark is not in it, or twice."""
    if any(text.find(mark) != text.rfind(mark) or mark not in text for mark in forms):
        return None
    text = text.replace(b"%", b"%%")
    for mark, form in forms.items():
        text = text.replace(mark, form)
    return text
