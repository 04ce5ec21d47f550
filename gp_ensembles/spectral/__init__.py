"""From GPyTorch kernels to spectral densities and random frequencies."""

from gp_ensembles.spectral.density import StationaryForm, form_of, log_spectral_density, stationary_form
from gp_ensembles.spectral.draws import (
    BaseDraws,
    FrequencyDraws,
    IIDDraws,
    OrthogonalDraws,
    SobolDraws,
    draw_batch,
)
from gp_ensembles.spectral.frequencies import (
    SpectralComponent,
    components_of,
    kernel_outputscale,
    spectral_components,
)

__all__ = [
    "BaseDraws",
    "FrequencyDraws",
    "IIDDraws",
    "OrthogonalDraws",
    "SobolDraws",
    "SpectralComponent",
    "StationaryForm",
    "components_of",
    "draw_batch",
    "form_of",
    "kernel_outputscale",
    "log_spectral_density",
    "spectral_components",
    "stationary_form",
]
