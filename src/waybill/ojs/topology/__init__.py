"""The broker entities for jobs: their names, declaration, checks, migration and examination."""
