"""Folds the event stream into the state of all jobs, and answers control requests from it."""
