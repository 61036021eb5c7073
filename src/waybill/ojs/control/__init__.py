"""What programs ask for besides jobs: cancel, look up, reserve, pause."""
