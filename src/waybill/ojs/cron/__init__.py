"""Periodic jobs (ojs-cron.md): when they are due, what coordinators know of them, and how to register them."""
