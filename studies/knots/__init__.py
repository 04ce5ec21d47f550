"""Garton et al. 2020: knots chosen one at a time."""
