"""The limits of a name server's tables, and of its audit: settings with defaults. Pure."""

from typing import Annotated

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.limits import (
    AUDIT_FILE_COUNT,
    AUDIT_FILE_SIZE,
    BROKERS_MAX,
    BROKERS_OF_CONNECTION_MAX,
    REGISTERED_TOPICS_MAX,
)
from reliable_mq.wire.java_int import I32_MAX

_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_FileSize = Annotated[int, msgspec.Meta(ge=64 * 1024, le=I32_MAX)]
_FileCount = Annotated[int, msgspec.Meta(ge=1, le=1_000)]


@decodable
class NameServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What is read at the start: nobody changes it over the network.

    Attributes:
        brokers: registered brokers; so there are at most as many clusters and names.
        brokers_of_connection: brokers that one connection registers.
        topics: registered topics, each counted once for each broker name that has it.
        audit_file_size: bytes of a file of the audit.
        audit_file_count: full files of the audit that are kept.
    """

    brokers: _Count = msgspec.field(default=BROKERS_MAX, name="maxBrokers")
    brokers_of_connection: _Count = msgspec.field(
        default=BROKERS_OF_CONNECTION_MAX, name="maxBrokersOfConnection"
    )
    topics: _Count = msgspec.field(default=REGISTERED_TOPICS_MAX, name="maxRegisteredTopics")
    audit_file_size: _FileSize = msgspec.field(default=AUDIT_FILE_SIZE, name="auditFileSize")
    audit_file_count: _FileCount = msgspec.field(default=AUDIT_FILE_COUNT, name="auditFileCount")
