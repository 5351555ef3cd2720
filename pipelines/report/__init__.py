"""The report of a run: one page of tables, charts and examples, and the tables of the terminal."""
