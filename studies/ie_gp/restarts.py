r"""Experts restarted at every row, and a mixture over all ways to cut a stream into segments.

Theorem 2 of Lu et al. (2022) charges the switching ensemble, for every segment of a stream, what an expert loses
that starts that segment **from its prior**. Their experts learn all rows and arrive at a segment with what they learned
of the others. This is an ensemble for which such a theorem is true: with probability :math:`1 - q` a row begins a
segment, whose kernel is drawn again from all M and whose expert knows nothing (Adams and MacKay 2007, with M kinds of
segments).
"""

import math

import torch
from torch import Tensor

from gp_ensembles.filters.states import gaussian_state
from gp_ensembles.filters.textbook import textbook_filter


def restarted_log_prob(Phi: Tensor, y: Tensor, noise: float) -> Tensor:
    """Log densities (M, T, T) of experts of unit prior variance that begin at each row: expert, first row, row.

    Minus infinity before an expert's first row.

    Args:
        Phi: Features, shape (M, T, F).
        y: Targets, shape (T,).
        noise: Observation variance.
    """
    num_experts, num_rows, num_features = Phi.shape
    row = torch.arange(num_rows, device=y.device)
    prepared = row >= row.unsqueeze(-1)
    targets = torch.where(prepared, y, torch.nan).expand(num_experts, -1, -1)
    start = gaussian_state(Phi.new_ones(num_experts, num_rows), num_features)
    _, steps = textbook_filter(start, Phi.unsqueeze(1), targets, Phi.new_tensor(noise))
    return torch.where(prepared, steps.log_prob, -torch.inf)


def restart_mixture(log_prob: Tensor, stay: float) -> Tensor:
    r"""Log densities (T,) of the mixture over all segmentations and all kernels of their segments.

    Args:
        log_prob: Log densities of the experts as :func:`restarted_log_prob` gives them, shape (M, T, T).
        stay: Probability q that a row does not begin a segment.

    Raises:
        ValueError: If ``stay`` is not a probability above zero and below one.

    Example:
        >>> log_prob = torch.zeros(1, 3, 3).masked_fill(torch.ones(3, 3).tril(-1) == 1, -torch.inf)
        >>> restart_mixture(log_prob, stay=0.5)
        tensor([0., 0., 0.])
    """
    if not 0 < stay < 1:
        raise ValueError(f"stay must lie between 0 and 1, got {stay}")
    num_experts, num_rows, _ = log_prob.shape
    log_weights = log_prob.new_full((num_experts, num_rows), -torch.inf)
    log_weights[:, 0] = -math.log(num_experts)
    out = []
    for t in range(num_rows):
        joint = log_weights + log_prob[:, :, t]
        total = joint.flatten().logsumexp(0)
        out.append(total)
        log_weights = joint - total + math.log(stay)
        if t + 1 < num_rows:
            log_weights[:, t + 1] = math.log((1 - stay) / num_experts)
    return torch.stack(out)


def restart_bound(num_experts: int, num_steps: int, num_switches: int, stay: float) -> float:
    r"""Most that :func:`restart_mixture` loses to any segmentation into S + 1 segments with an expert begun in each.

    .. math:: \log M + S \log\frac M{1 - q} + (T - 1 - S) \log\frac1q

    The mixture's density of all targets is a sum over segmentations of prior probability times density, so it is at
    least any one term. Against fixed functions add the ``cost`` of
    :func:`~studies.ie_gp.bounds.batch_estimate` of each segment.

    Raises:
        ValueError: If there cannot be so many switches, or ``stay`` is no probability above zero and below one.

    Example:
        >>> round(restart_bound(num_experts=2, num_steps=101, num_switches=1, stay=0.99), 4)
        6.9864
    """
    if num_experts < 1 or not 0 <= num_switches <= num_steps - 1:
        raise ValueError(f"{num_experts} experts cannot switch {num_switches} times in {num_steps} steps")
    if not 0 < stay < 1:
        raise ValueError(f"stay must lie between 0 and 1, got {stay}")
    switching = num_switches * math.log(num_experts / (1 - stay))
    return math.log(num_experts) + switching - (num_steps - 1 - num_switches) * math.log(stay)
