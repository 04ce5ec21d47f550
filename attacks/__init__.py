"""Attacks on the library from outside, each with a table of numbers: ``python -m attacks NAME``."""
