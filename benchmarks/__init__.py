"""Measurements of speed, memory and error; a package, as another distribution may bring one of this name."""
