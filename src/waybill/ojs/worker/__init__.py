"""Takes jobs from queues, runs them, and settles them."""
