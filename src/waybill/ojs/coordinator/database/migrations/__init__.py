"""The migrations. Alembic finds them in `versions`: see docs/how-to/postgresql.md."""
