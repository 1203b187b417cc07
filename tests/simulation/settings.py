"""The settings of a broker in the simulated world: everything is small, and happens soon."""

from collections.abc import Mapping

from tests.simulation.plan import BODY_SIZE_MAX, DELAY_LEVELS, HALF_TIMEOUT_MS, Plan

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.config_reading import broker_config


def config_of(plan: Plan, more: Mapping[str, str]) -> BrokerConfig:
    """Return the broker's settings; `more`: those of its role."""
    config, warnings = broker_config(
        {
            "brokerName": "broker",
            "mappedFileSizeCommitLog": str(plan.segment_size),
            "mappedFileSizeConsumeQueue": str(plan.queue_file_size),
            "maxHashSlotNum": "50",
            "maxIndexNum": "500",
            "maxMessageSize": str(BODY_SIZE_MAX * 2),
            "messageDelayLevel": DELAY_LEVELS,
            "flushDiskType": "SYNC_FLUSH" if plan.is_sync_flush else "ASYNC_FLUSH",
            "flushConsumerOffsetInterval": "300",
            "flushDelayOffsetInterval": "200",
            "transactionTimeOut": str(HALF_TIMEOUT_MS),
            "transactionCheckInterval": str(plan.half_check_ms or 100_000_000),
            "transactionCheckMax": str(plan.half_checks_max),
            "cleanResourceInterval": str(plan.clean_ms),
            "deleteFileBatchMax": "2",
            "cleanFileForciblyEnable": "true",
            "mappedFileSizeTimerLog": "4096",
            "recallMessageEnable": "true",
            "rocketmq.broker.rebalance.lockMaxLiveTime": "3000",
            **more,
        }
    )
    assert not warnings
    return config
