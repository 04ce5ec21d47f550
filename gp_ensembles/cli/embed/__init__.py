"""Rows of many entries embedded in a few dimensions as they come, by ensembles of latent variable models."""
