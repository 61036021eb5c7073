"""From Celery to jobs: its messages as jobs (`bridge`), its tasks and schedules as handlers (`migration`)."""
