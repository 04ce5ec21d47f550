"""spectral."""
