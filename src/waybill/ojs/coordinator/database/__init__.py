"""The database of a coordinator's state: connection, tables, migrations and retention."""
