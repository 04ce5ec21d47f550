"""Draws of a fusion for ArviZ, an optional extra (``pip install "gp_ensembles[arviz]"``)."""

from typing import Any

import torch
from torch import Tensor

from gp_ensembles.fusion.fitted import FittedFusion


def to_arviz(fitted: FittedFusion) -> Any:
    """All draws, by chain and unweighted, as ArviZ keeps them.

    Weights of chains or draws are not part of it: ArviZ's summaries take all draws alike. An inference without chains
    counts as one chain.

    Args:
        fitted: The fitted fusion.

    Returns:
        ``arviz.InferenceData`` (a ``DataTree`` since ArviZ 1.0) with the groups ``posterior`` (a variable for each
        block of the parameters), ``log_likelihood`` and ``observed_data``, and with chains ``sample_stats``.

    Raises:
        ImportError: If ArviZ is not installed.

    Example:
        >>> import arviz  # doctest: +SKIP
        >>> arviz.summary(to_arviz(fitted))  # doctest: +SKIP
    """
    try:
        import arviz
    except ImportError as error:
        raise ImportError('ArviZ is not installed: pip install "gp_ensembles[arviz]"') from error
    groups = groups_of(fitted)
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict(groups)
    return arviz.from_dict(**groups)


@torch.no_grad()
def groups_of(fitted: FittedFusion) -> dict[str, dict[str, Any]]:
    """The groups that :func:`to_arviz` hands over, as arrays whose first axes are chains and draws."""
    model, draws = fitted.model, fitted.inferred.draws
    theta = fitted.theta.unsqueeze(0) if draws is None else draws.theta
    groups = {
        "posterior": {name: _array(block) for name, block in model.unpack(theta).items()},
        "log_likelihood": {"y": _array(torch.stack([model.pointwise(chain) for chain in theta]))},
        "observed_data": {"y": _array(model.y)},
    }
    if draws is not None:
        groups["sample_stats"] = {
            "lp": _array(draws.log_density),
            "diverging": _array(draws.divergent),
            "energy": _array(draws.energy),
            "acceptance_rate": _array(draws.acceptance),
        }
    return groups


def _array(values: Tensor) -> Any:
    return values.detach().cpu().numpy()
