"""What outlives the process: one SQLite file, and the tables in it."""
