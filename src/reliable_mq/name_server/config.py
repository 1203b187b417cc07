"""The name server's settings, under Apache RocketMQ's property names and with its defaults.

Source: Apache RocketMQ `NamesrvConfig`.
"""

from collections.abc import Mapping

import msgspec

from reliable_mq.decodable import decodable


@decodable
class NameServerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Every property that this name server supports; all of them can change while it runs.

    `enable_all_topic_list`: whether the list of all topics is given out. `enable_topic_list`: the
    same of the lists of a cluster's topics and of unit topics. `order_message_enable`: whether a
    route says how many queues an ordered topic has. `return_order_topic_config_to_broker`: whether
    brokers are told which topics are ordered.
    """

    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True


def changed_config(config: NameServerConfig, changes: Mapping[str, str]) -> NameServerConfig:
    """Return the settings after a change; names that are not known are passed over.

    Raises:
        msgspec.ValidationError: when a value does not read.
    """
    known = msgspec.to_builtins(config)
    supported = {name: value for name, value in changes.items() if name in known}
    return msgspec.convert({**known, **supported}, NameServerConfig, strict=False)
