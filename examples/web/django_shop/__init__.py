"""A Django project with jobs."""
