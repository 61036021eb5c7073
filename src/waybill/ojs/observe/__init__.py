"""Events, counters and metrics of producers and workers."""
