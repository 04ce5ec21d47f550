"""Bayesian optimization with ensembles beside single Gaussian processes: regrets on test functions, drift, tuning."""
