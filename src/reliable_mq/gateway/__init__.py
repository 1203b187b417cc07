"""What RocketMQ's own new clients speak: gRPC, as an apache.rocketmq.v2 endpoint."""
