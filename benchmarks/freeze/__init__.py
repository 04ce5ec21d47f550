"""Numbers that a change of the code must not change: written to a file, compared with another."""
