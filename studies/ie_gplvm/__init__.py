"""Lu et al. 2022, figure 7: latent variables row by row."""
