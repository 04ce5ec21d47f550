"""Ajirak et al. 2024: fusion of Gaussian process experts."""
