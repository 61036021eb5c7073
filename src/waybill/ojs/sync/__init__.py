"""Jobs from programs without an event loop: scripts, threads, Flask, Django, processes that fork."""
