"""Bayesian optimization with ensembles beside single Gaussian processes, on test functions, drift and tuning."""
