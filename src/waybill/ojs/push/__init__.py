"""How jobs get to the broker: individually, in bulk, and from a database."""
