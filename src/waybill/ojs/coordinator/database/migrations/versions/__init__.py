"""One file per migration, in numeric order. A released migration never changes."""
