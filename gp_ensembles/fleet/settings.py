"""What a fleet is made of: the ensemble of its series by default, and what is refused where it is made."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from gp_ensembles.calibration.levels import check_coverages
from gp_ensembles.engine.input_checks import check_made
from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import light
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.spec_checks import check_count, check_flag
from gp_ensembles.fleet.warm_up import LEAST_TARGETS

_BASIS = FourierBasis(num_features=50, starts=(0.7,), name="rff")
# ``light`` with few features: eighty kilobytes for each series.
SMALL: EnsembleSpec = replace(light, name="small", bases=(_BASIS,), lags=TargetLags(bases=(_BASIS,)), extra_experts=())


def check_settings(
    fleet: object,
    spec: EnsembleSpec,
    warmup: int,
    seed: int,
    coverages: Sequence[float],
    dtype: torch.dtype,
    own_variances: bool,
    own_length_scales: bool,
) -> None:
    """Raise unless these can be the settings of a fleet, which is named.

    Raises:
        TypeError: If one is of another kind, as the name of an ensemble or of a dtype is.
        ValueError: If targets are not single real numbers, or a number is out of range.
    """
    check_made("spec", spec, EnsembleSpec, "gpe.light or gpe.e_doebe")
    if not spec.target.is_real or spec.target.num_outputs is not None:
        raise ValueError(f"series of a fleet have single real numbers as targets, got {spec.target!r}")
    check_count(fleet, "warmup", warmup, least=LEAST_TARGETS)
    check_count(fleet, "seed", seed, least=0, most=2**63 - 1)
    check_coverages(coverages)
    if dtype not in (torch.float64, torch.float32):
        raise TypeError(f"dtype must be torch.float64 or torch.float32, got {dtype!r}")
    check_flag(fleet, "own_variances", own_variances)
    check_flag(fleet, "own_length_scales", own_length_scales)
