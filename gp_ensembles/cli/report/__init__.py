"""The report of a run: one HTML file, ``page.html`` filled in, that opens without a network."""
