"""Shared infrastructure of all studies: records of finished parts."""
