"""The name server's settings, with Apache RocketMQ's property names and defaults.

Source: Apache RocketMQ `NamesrvConfig`.
"""

from collections.abc import Mapping

import msgspec

from reliable_mq.decodable import decodable


@decodable
class NameServerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All properties that this name server supports. Each can change at run time.

    `enable_all_topic_list`: whether clients may list all topics. Default True.
    `enable_topic_list`: whether clients may list the topics of a cluster, and unit topics. Default
    True. `order_message_enable`: whether a route has the queue counts of an ordered topic. Default
    False. `return_order_topic_config_to_broker`: whether the reply to a registration has the
    ordered topics. Default True.
    """

    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True


def changed_config(config: NameServerConfig, changes: Mapping[str, str]) -> NameServerConfig:
    """Return the settings after a change; unknown names are ignored.

    Raises:
        msgspec.ValidationError: when a value does not parse.
    """
    known = msgspec.to_builtins(config)
    supported = {name: value for name, value in changes.items() if name in known}
    return msgspec.convert({**known, **supported}, NameServerConfig, strict=False)
