"""Results of jobs, for programs that wait for them."""
