"""What producers and workers tell about themselves: events, counters, metrics."""
