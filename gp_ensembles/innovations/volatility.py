r"""The size of errors, followed by the score of a Student-t density: a squared error counts less the larger it is.

.. math:: g_{t+1} = g_t \left( 1 - \lambda + \lambda \frac{(\nu + 1)\, z_t}{\nu g_t + z_t} \right)

with :math:`z_t = (e_t - h_t)^2 / s_t^2` (Harvey 2013, "Dynamic Models for Volatility and Heavy Tails"; the update of a
scale by expectation maximization, a share :math:`\lambda` of the way). One error, however gross, raises :math:`g` at
most by the factor :math:`1 + \lambda \nu`. As :math:`\nu \to \infty` it is the exponentially weighted mean of
:math:`z`.
"""

import torch
from torch import Tensor

from gp_ensembles.numerics.reductions import readable_flags

# Squared errors in the experts' variances: a scale of nothing could not grow again, and a gross error not be squared.
SMALLEST, LARGEST = 1e-6, 1e30


def update_block(
    scale: Tensor, squares: Tensor, rate: Tensor, df: Tensor, missing: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Follow the size of errors through a block.

    Shapes: ``scale`` (V, M), ``squares`` (V, M, B), ``rate`` (V, 1), ``df`` (V, 1), ``missing`` (B,); returns (V,
    M, B).
    """
    keep, gain = (1 - rate).expand_as(scale).contiguous(), (rate * (df + 1)).expand_as(scale).contiguous()
    one = torch.ones_like(scale)
    before, known = [], None if missing is None else readable_flags(missing)
    ratios = (df.unsqueeze(-1) / squares.clamp(SMALLEST, LARGEST)).movedim(-1, 0).contiguous()
    # z / (nu g + z) = 1 / (1 + g nu / z): three small operations a row.
    for number, ratio in enumerate(ratios.unbind(0)):
        before.append(scale)
        if known is not None and known[number]:
            continue
        after = scale * torch.addcdiv(keep, gain, torch.addcmul(one, scale, ratio))
        scale = after if missing is None or known is not None else torch.where(missing[number], scale, after)
    if not before:
        return scale, torch.zeros_like(squares)
    return scale, torch.stack(before).movedim(0, -1).contiguous()
