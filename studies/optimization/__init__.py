"""Bayesian optimization with ensembles and with single Gaussian processes: test functions, drift, tuning."""
