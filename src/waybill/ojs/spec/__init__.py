"""The Open Job Spec: envelope, states, retries, events and messages of jobs. No connection, no event loop."""
