"""The connection that producers, workers and coordinators use, and the user that it belongs to."""
