"""Lu et al. 2022: incremental ensembles of Gaussian processes on streams."""
