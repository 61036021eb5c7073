"""The report: figures collected from the tables, shown in the terminal, as one HTML page, or as JSON."""
