"""What the model does is tried over AMQP 0-9-1, each test three times: whole, octet by octet, in random cuts."""

from tests.engine.amqp091.conftest import bench, bystander, channel, node_bench

__all__ = ["bench", "bystander", "channel", "node_bench"]
