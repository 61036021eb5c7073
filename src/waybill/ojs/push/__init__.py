"""How jobs get to the broker: one by one, in bulk, and out of a database."""
