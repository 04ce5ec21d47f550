"""An innovation model: settings of one further prediction of each expert."""

import math
from dataclasses import dataclass
from typing import final

_LEAST_DF = 2.0  # below, a Student-t distribution has no variance


@final
@dataclass(frozen=True)
class InnovationModel:
    r"""A further prediction, made from an expert's own one-step prediction and its past errors.

    With the expert's prediction :math:`N(m_t, s_t^2)` and its past errors :math:`e = y - m`, the target has location
    :math:`m_t + h_t` and squared scale :math:`c\, g_t s_t^2`, normal or Student-t with :math:`\nu` degrees of freedom:
    :math:`h_t` is the prediction of a first-order autoregression of the errors, :math:`g_t` follows their size.

    Attributes:
        degrees_of_freedom: :math:`\nu`, above 2; infinity for the normal distribution.
        rate: Share of the newest error in :math:`g_t`, from 0 (the expert's own scale, :math:`g_t = 1`) to below 1.
        width: c, a fixed factor of the squared scale; one that is small makes a narrow peak with heavy tails.
        autoregressive: Whether errors are predicted from the one before; else :math:`h_t = 0`.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> InnovationModel(degrees_of_freedom=4, rate=0.1).label
        'ar t4 rate 0.1'
    """

    degrees_of_freedom: float = math.inf
    rate: float = 0.05
    width: float = 1.0
    autoregressive: bool = True

    def __post_init__(self) -> None:
        if not self.degrees_of_freedom > _LEAST_DF:
            raise ValueError(f"degrees_of_freedom must be above {_LEAST_DF:g}, got {self.degrees_of_freedom}")
        if not 0 <= self.rate < 1:
            raise ValueError(f"rate must be at least 0 and below 1, got {self.rate}")
        if not 0 < self.width < math.inf:
            raise ValueError(f"width must be positive and finite, got {self.width}")
        if not isinstance(self.autoregressive, bool):
            raise TypeError(f"autoregressive must be True or False, got {self.autoregressive!r}")

    @property
    def label(self) -> str:
        """Its name, which follows that of an expert."""
        kind = "normal" if math.isinf(self.degrees_of_freedom) else f"t{self.degrees_of_freedom:g}"
        parts = ["ar"] * self.autoregressive + [kind, f"rate {self.rate:g}"]
        return " ".join([*parts, *([f"width {self.width:g}"] if self.width != 1 else [])])
