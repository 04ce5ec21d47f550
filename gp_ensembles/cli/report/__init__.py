"""The report of a run: its history, and one self-contained HTML file."""
