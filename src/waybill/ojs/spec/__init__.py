"""What the Open Job Spec says of a job: its envelope, states, retries, events and messages. No connection, no loop."""
