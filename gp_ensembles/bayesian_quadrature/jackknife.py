"""How far predictions would move with other evaluations: the delete-a-group jackknife."""

import torch
from torch import Tensor

GROUPS = 10


def rows_without_each_group(values: Tensor) -> list[Tensor]:
    """Rows of all but one group of h values, shape (h,), for each of at most ten groups.

    Consecutive values go to different groups, so that each group has its share of every number of components.

    Example:
        >>> import torch
        >>> [rows.tolist() for rows in rows_without_each_group(torch.zeros(3))]
        [[1, 2], [0, 2], [0, 1]]
    """
    index = torch.arange(values.shape[0], device=values.device)
    groups = min(GROUPS, len(index))
    return [index[index % groups != group] for group in range(groups)] if groups > 1 else [index]


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
