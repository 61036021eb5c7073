"""Periodic jobs (ojs-cron.md): schedules, the state in coordinators, and registration."""
