"""Streams of lines: rows arrive one at a time on a pipe or in a growing file, and are answered at once."""
