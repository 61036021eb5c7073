"""The database of a coordinator's state: its connection, its tables and how they change, and what is forgotten."""
