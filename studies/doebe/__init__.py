"""Waxman and Djuric 2024: dynamic online ensembles of basis expansions."""
