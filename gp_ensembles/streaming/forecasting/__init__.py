"""Several rows ahead: joint sample paths of an ensemble on a stream, and how they are scored."""

__all__ = []
