"""The migrations, which Alembic finds in `versions`: see docs/how-to/postgresql.md."""
