"""Online ensembles of Gaussian processes and Bayesian basis expansions."""
