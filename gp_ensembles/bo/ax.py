"""Registration with Ax, so that ensembles serve as surrogates of its BoTorch generator."""

from typing import Any

from botorch.exceptions.errors import UnsupportedError
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood

from gp_ensembles.bo.exact_model import ExactEnsembleModel
from gp_ensembles.bo.model import EnsembleModel


def register() -> None:
    """Register how Ax fits and serializes both models; raises an ImportError if Ax is not installed."""
    try:
        from ax.generators.torch.botorch_modular.utils import fit_botorch_model
        from ax.storage.botorch_modular_registry import register_model
    except ImportError:
        raise ImportError("register() needs Ax; install gp_ensembles[ax]") from None

    for kind in (ExactEnsembleModel, EnsembleModel):
        fit_botorch_model.register(kind)(fit_ax_model)
        register_model(kind)


def fit_ax_model(
    model: ExactEnsembleModel | EnsembleModel,
    mll_class: type[MarginalLogLikelihood] = ExactMarginalLogLikelihood,
    mll_options: dict[str, Any] | None = None,
) -> None:
    """Fit a surrogate in place; called by Ax."""
    if mll_class is not ExactMarginalLogLikelihood or mll_options:
        raise UnsupportedError("experts are fitted by their own evidence; do not set mll_class or mll_options")
    model.custom_fit(mll_class(model.likelihood, model))
