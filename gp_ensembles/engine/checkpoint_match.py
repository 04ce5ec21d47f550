"""Checks that a checkpoint belongs to the object it is loaded into: the shapes of tensors, the parts of an ensemble."""

from collections.abc import Mapping
from dataclasses import asdict

from torch import Tensor, nn

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.innovations import InnovationModel


def check_shapes(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, kind: str = "ensemble") -> None:
    """Raise before anything is loaded if a tensor is missing or has another shape: something else was saved.

    Raises:
        RuntimeError: Naming the first tensor that does not fit.
    """
    own = module.state_dict()
    saved = {name: state_dict[prefix + name].shape for name in own if prefix + name in state_dict}
    wrong = [name for name, value in own.items() if saved.get(name) != value.shape]
    if wrong:
        raise RuntimeError(
            f"this state_dict is of another {kind}: {len(wrong)} of {len(own)} tensors are missing or have another "
            f"shape, the first is {wrong[0]!r}; build the {kind} as it was when it was saved"
        )


def parts_in_words(ensemble: Ensemble) -> dict[str, str]:
    """What an ensemble is made of besides numbers, by name: plain, for files."""
    layers = ensemble.layers
    modules = ((name.removeprefix("_modules_of_"), module) for name, module in ensemble.named_modules())
    kinds = {name: type(module).__name__ for name, module in modules if name}
    return {
        "experts": ", ".join(ensemble.names),
        **kinds,
        "innovation models": "; ".join(_in_words(model) for model in (layers.bank.models if layers.bank else ())),
        "lags": "none" if layers.memory is None else repr(tuple(layers.memory.lags)),
        "outlier threshold": "none" if layers.outlier_threshold is None else f"{layers.outlier_threshold:g}",
    }


def _in_words(model: InnovationModel) -> str:
    return ", ".join(f"{name} {float(value):g}" for name, value in asdict(model).items())


def check_parts(ensemble: Ensemble, other: Mapping[str, str], where: object) -> None:
    """Raise unless words that :func:`parts_in_words` wrote into a file are those of an ensemble.

    Raises:
        ValueError: Naming the first part that differs.
    """
    own = parts_in_words(ensemble)
    for name in [*own, *other] if other else ():
        if own.get(name) != other.get(name):
            raise ValueError(
                f"{where} has another ensemble: {name} is {other.get(name, 'missing')} there and "
                f"{own.get(name, 'missing')} here; build the ensemble as it was built then"
            )
