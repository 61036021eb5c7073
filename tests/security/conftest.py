"""Attacks reach a node whole, octet by octet and in random cuts, and a second connection must notice none of them."""

from tests.engine.amqp091.conftest import bench as bench  # noqa: PLC0414 - a fixture, found by its name
from tests.engine.amqp091.conftest import bystander as bystander  # noqa: PLC0414
from tests.engine.amqp091.conftest import channel as channel  # noqa: PLC0414
from tests.engine.amqp091.conftest import node_bench as node_bench  # noqa: PLC0414
