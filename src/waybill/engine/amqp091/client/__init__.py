"""The client's side of AMQP 0-9-1 as state machines without I/O."""
