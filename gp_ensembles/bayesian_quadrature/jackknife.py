"""How far predictions would move with other evaluations: the delete-a-group jackknife."""

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.store import Evaluations
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate

GROUPS = 10


def without_each_group(surrogate: Surrogate) -> list[tuple[Tensor, Surrogate]]:
    """For each tenth of the evaluated kernels, the rows of the others and the surrogate of those alone.

    Hyper-parameters stay those of all. Consecutive kernels go to different groups, so that each group loses a bit of
    every number of components.
    """
    evaluations = surrogate.evaluations
    index = torch.arange(evaluations.log_likelihood.numel(), device=evaluations.cube.device)
    parts = []
    for group in range(min(GROUPS, len(index))):
        rows = index[index % GROUPS != group]
        if not len(rows):
            continue
        kept = Evaluations(evaluations.cube[rows], evaluations.log_likelihood[rows])
        parts.append((rows, Surrogate(kept, surrogate.geometry, surrogate.parameters)))
    return parts


def jackknife_sd(replicates: list[Tensor]) -> Tensor:
    r"""Standard error from estimates that each lack one of G groups (Tukey, 1958).

    .. math:: \sqrt{\frac{G - 1}{G} \sum_g (t_g - \bar t)^2}

    Args:
        replicates: G estimates of one shape.

    Example:
        >>> import torch
        >>> values = torch.tensor([1.0, 2.0, 4.0, 5.0], dtype=torch.float64)
        >>> leave_one_out = [(values.sum() - value) / 3 for value in values]
        >>> bool((jackknife_sd(leave_one_out) - values.std() / 2).abs() < 1e-12)  # of a mean, the textbook's
        True
    """
    stacked = torch.stack(replicates)
    return (stacked.var(0, unbiased=False) * (len(replicates) - 1)).sqrt()
