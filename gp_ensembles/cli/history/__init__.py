"""The record of a run, in constant memory, for its checkpoint, pictures and report."""
