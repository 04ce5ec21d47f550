"""From stationary GPyTorch kernels to spectral densities and random frequencies.

- :mod:`~gp_ensembles.spectral.density`: spectral densities of RBF and Matern kernels, for Hilbert-space features; a
  kernel of your own is added with ``stationary_form.register``.
- :mod:`~gp_ensembles.spectral.frequencies`: draws of frequencies, for random Fourier features: independent
  (:class:`IIDDraws`), orthogonal (:class:`OrthogonalDraws`) or quasi-random (:class:`SobolDraws`), turned into those of
  a kernel by differentiable quantiles; add your own kernel with ``spectral_components.register``.
"""

from gp_ensembles.spectral.frequencies import IIDDraws, OrthogonalDraws, SobolDraws

__all__ = ["IIDDraws", "OrthogonalDraws", "SobolDraws"]
