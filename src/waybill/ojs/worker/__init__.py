"""Consumes job queues, runs jobs, and settles them."""
