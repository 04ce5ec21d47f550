"""Models from outside as further experts, as frozen records."""

from dataclasses import dataclass
from typing import final

from gp_ensembles.ensembles.build import NamedExpert
from gp_ensembles.ensembles.further import FurtherExpert, WarmUp
from gp_ensembles.ensembles.spec_checks import check_count, check_flag, check_name, check_positive
from gp_ensembles.experts.boosting import HistogramBoosting
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.features.compose import SelectColumns
from gp_ensembles.features.inputs import InputFeatures

_TRAININGS = 8  # the first one is after an eighth of the warm-up rows: at their end there are errors to learn from


@final
@dataclass(frozen=True)
class Boosting(FurtherExpert):
    """Gradient-boosted trees of histograms, trained anew now and then: best where the function has steps.

    A second model learns the scale of the errors, see :class:`~gp_ensembles.experts.boosting.HistogramBoosting`. It is
    trained after an eighth, a quarter, a half and all of the warm-up rows, and so on, see
    :class:`~gp_ensembles.experts.external.ExternalExpert`.

    Attributes:
        num_trees: Trees for the mean.
        learning_rate: What each of them counts.
        every: Most rows between two trainings.
        num_rows: Most rows that it is trained on, the last ones.
        lags: Whether it sees past targets behind the inputs, where the ensemble has any.
        name: What the expert is called.

    Raises:
        TypeError: If a number is none.
        ValueError: If a number is out of range.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> X = torch.rand(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> y = (X > 0.5).double().sum(-1) - 1
        >>> online = replace(oebe, bases=(LinearBasis(),), further=(Boosting(),)).fit(X, y)
        >>> predictions = online.observe(X, y)
        >>> online.names[int(online.log_weights.argmax())]
        'boosting/0'
    """

    num_trees: int = 100
    learning_rate: float = 0.1
    every: int = 1000
    num_rows: int = 20_000
    lags: bool = True
    name: str = "boosting"

    def __post_init__(self) -> None:
        for field in ("num_trees", "every", "num_rows"):
            check_count(self, field, getattr(self, field))
        check_positive(self, "learning_rate", self.learning_rate, most=1.0)
        check_flag(self, "lags", self.lags)
        check_name(self, self.name)

    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        """See :meth:`FurtherExpert.build`."""
        X, num_columns = warm_up.inputs if self.lags else warm_up.X, warm_up.inputs.shape[1]
        inputs = InputFeatures(X.shape[1], X.new_ones(()))
        features = inputs if X.shape[1] == num_columns else SelectColumns(inputs, range(X.shape[1]), num_columns)
        first = -(-X.shape[0] // _TRAININGS)
        guest = HistogramBoosting(self.num_trees, self.learning_rate)
        return [(self.name, ExternalExpert(guest, features, first, self.every, self.num_rows))]
