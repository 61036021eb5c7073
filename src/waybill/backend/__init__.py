"""The Open Job Spec over HTTP: an application, its routes, and the leases of the jobs that it gives out."""
