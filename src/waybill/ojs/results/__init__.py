"""How a job ended, for whoever waits for it."""
