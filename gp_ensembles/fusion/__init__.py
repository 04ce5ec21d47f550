"""Fusion of the predictions of Gaussian processes and of other models, by weights that depend on the input."""
