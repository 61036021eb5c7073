"""Workflows (ojs-workflows.md): chains, groups, batches, and steps that depend on each other."""
