"""Migration from Celery: its messages become jobs (`bridge`), its tasks and schedules become handlers (`migration`)."""
