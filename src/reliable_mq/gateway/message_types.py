"""The classes of the messages of `apache.rocketmq.v2`, made from `message_facts` at import.

The descriptors are in a pool of their own: another library of the process may have the same names
in the default one, as the official client for Python does.
"""

from typing import Any

from reliable_mq.extras import extra_of
from reliable_mq.gateway.message_facts import ENUMS, MESSAGES, PACKAGE

with extra_of("the gRPC endpoint"):
    from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    from google.protobuf import duration_pb2, timestamp_pb2  # isort: skip

Message = message.Message
DecodeError = message.DecodeError

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "bool": _Field.TYPE_BOOL,
    "float": _Field.TYPE_FLOAT,
}
_GOOGLE = frozenset({"Duration", "Timestamp"})
_FILE = "apache/rocketmq/v2/facts.proto"


def _described() -> Any:
    """Return the description of the whole package."""
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=PACKAGE, syntax="proto3")
    file.dependency.extend(["google/protobuf/duration.proto", "google/protobuf/timestamp.proto"])
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for line in MESSAGES.strip().replace("\n  ", " ").splitlines():
        name, _, fields = line.partition(": ")
        described = file.message_type.add(name=name)
        choices: dict[str, int] = {}
        optional: list[Any] = []
        for text in fields.split(", "):
            field_name, kind, field_number = text.split()
            field = described.field.add(name=field_name, number=int(field_number))
            field.label = _Field.LABEL_REPEATED if kind[0] in "*m" else _Field.LABEL_OPTIONAL
            choice = kind.partition("/")[0] if "/" in kind else ""
            if choice:
                if choice not in choices:
                    choices[choice] = len(described.oneof_decl)
                    described.oneof_decl.add(name=choice)
                field.oneof_index = choices[choice]
            elif kind.startswith("?"):
                optional.append(field)
            _set_type(field, described, kind.rpartition("/")[2].lstrip("*?"))
        for field in optional:  # behind the other choices, as the rules of descriptors say
            field.proto3_optional = True
            field.oneof_index = len(described.oneof_decl)
            described.oneof_decl.add(name=f"_{field.name}")
    return file


def _set_type(field: Any, described: Any, kind: str) -> None:
    if kind == "map":
        entry_name = "".join(map(str.capitalize, field.name.split("_"))) + "Entry"
        entry = described.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        for number, name in enumerate(("key", "value"), 1):
            entry.field.add(
                name=name, number=number, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL
            )
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{described.name}.{entry_name}"
    elif kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif kind in ENUMS:
        field.type, field.type_name = _Field.TYPE_ENUM, f".{PACKAGE}.{kind}"
    else:
        package = "google.protobuf" if kind in _GOOGLE else PACKAGE
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"


def _made() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    for module in (duration_pb2, timestamp_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(_described().SerializeToString())
    names = [line.partition(":")[0] for line in MESSAGES.splitlines() if line[:1].isupper()]
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in names
    }


TYPES: dict[str, Any] = _made()
"""The class of each message, by its name."""
