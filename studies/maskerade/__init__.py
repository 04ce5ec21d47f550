"""Hamid et al. 2022: kernels marginalized by Bayesian quadrature."""
