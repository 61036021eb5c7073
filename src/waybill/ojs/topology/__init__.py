"""What exists on the broker for jobs: named, declared, compared, moved and examined."""
