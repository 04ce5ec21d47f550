"""Any torch module as a feature extractor."""

from collections.abc import Sequence
from copy import deepcopy
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from gp_ensembles.features.base import BoundFeatures, FeatureMap, PriorVariance, positive_like


@final
class NeuralFeatures(FeatureMap):
    r"""The outputs of a torch module as features: Bayesian linear regression on a network's last layer.

    .. math:: \phi(x) = f_w(x)

    with the network's parameters w among the hyperparameters of the map. Several modules of one structure make
    a batch of experts: their parameters are stacked and the batch is evaluated at once. Modules of different
    structure belong in different experts, one ``NeuralFeatures`` each.

    The modules are copied, in the mode (training or evaluation) that they are in. They must treat every row by
    itself, or a prediction would depend on rows that come later; batch normalization and dropout are therefore
    refused in training mode. The map owns the copies' parameters and buffers, with the batch axis first: that
    of ``layer.weight`` is called ``body__layer__weight``.

    Args:
        modules: One module that takes rows (R, D) to features (R, F), or one such module for every expert.
        num_inputs: Number of input columns D.
        num_features: Number of features F.
        prior_variance: Initial prior variance of every weight, in squared units of the target: a number, or
            shape () for one module, (S,) for a sequence of S modules.
        dtype: Dtype of the map where the modules have no parameters.

    Raises:
        ValueError: If the modules differ in structure, their output has another shape than (R, F), they hold
            batch normalization or dropout in training mode, or ``prior_variance`` does not fit.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> body = nn.Sequential(nn.Linear(2, 8, dtype=torch.float64), nn.Tanh())
        >>> features = NeuralFeatures(body, num_inputs=2, num_features=8)
        >>> features(torch.zeros(5, 2, dtype=torch.float64)).shape
        torch.Size([5, 8])
    """

    def __init__(
        self,
        modules: nn.Module | Sequence[nn.Module],
        num_inputs: int,
        num_features: int,
        prior_variance: float | Tensor = 1.0,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        single = isinstance(modules, nn.Module)
        experts: list[nn.Module] = [modules] if isinstance(modules, nn.Module) else list(modules)
        _check_structure(experts)
        batch_shape = torch.Size() if single else torch.Size([len(experts)])
        super().__init__(num_inputs, num_features, batch_shape)
        like = next(experts[0].parameters(), torch.empty((), dtype=dtype))
        start = positive_like(prior_variance, like, "prior_variance")
        if start.shape not in (torch.Size(), batch_shape):
            raise ValueError(
                f"prior_variance must be a number or have shape {tuple(batch_shape)} for {len(experts)} module(s), "
                f"got {tuple(start.shape)}"
            )
        self.prior: PriorVariance = PriorVariance(batch_shape, start)
        self._skeleton = (deepcopy(experts[0]),)  # in a tuple: not a part, its own tensors are never used
        states = [_tensors(module) for module in experts]
        for name, first in states[0].items():
            stacked = torch.stack([state[name].detach() for state in states])
            value = stacked[0] if single else stacked
            if isinstance(first, nn.Parameter):
                self.register_parameter(_own(name), nn.Parameter(value, requires_grad=first.requires_grad))
            else:
                self.register_buffer(_own(name), value)
        with torch.no_grad():
            self.bind()(like.new_zeros(2, num_inputs))

    @property
    def prior_variance(self) -> Tensor:
        r"""Prior variance of each weight, shape (\*batch), differentiable."""
        value: Tensor = self.prior()
        return value

    def bind(self) -> BoundFeatures:
        """Read the parameters once and return the map as a plain function of tensors."""
        skeleton, batch_shape = self._skeleton[0], self.batch_shape
        num_inputs, num_features = self.num_inputs, self.num_features
        state: dict[str, Tensor] = {name: getattr(self, _own(name)) for name in _tensors(skeleton)}

        def single(state: dict[str, Tensor], rows: Tensor) -> Tensor:
            Phi: Tensor = functional_call(skeleton, state, (rows,))
            if Phi.shape != (rows.shape[0], num_features):
                raise ValueError(
                    f"the module returned shape {tuple(Phi.shape)} for {rows.shape[0]} rows; NeuralFeatures "
                    f"expected {num_features} features"
                )
            return Phi

        def features(X: Tensor) -> Tensor:
            rows = X.reshape(-1, num_inputs)
            function = single
            for _ in batch_shape if state else ():
                function = vmap(function, in_dims=(0, None))
            Phi = function(state, rows).expand(*batch_shape, -1, -1)
            Phi = Phi.reshape(*batch_shape, *X.shape[:-1], num_features)
            num_batch, num_lead = len(batch_shape), X.ndim - 2
            return Phi.movedim(tuple(range(num_batch)), tuple(range(num_lead, num_lead + num_batch)))

        return features


def _own(name: str) -> str:
    """Name under which the map owns a tensor of the module."""
    return "body__" + name.replace(".", "__")


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _signature(module: nn.Module) -> tuple[str, list[tuple[str, torch.Size, torch.dtype, torch.device]]]:
    return repr(module), [(name, t.shape, t.dtype, t.device) for name, t in _tensors(module).items()]


def _check_structure(modules: list[nn.Module]) -> None:
    if not modules:
        raise ValueError("NeuralFeatures needs at least one module, got none")
    for index, module in enumerate(modules):
        if _signature(module) != _signature(modules[0]):
            raise ValueError(
                f"module {index} differs in structure, dtype or device from module 0; give each its own "
                f"NeuralFeatures, in different experts"
            )
        for name, part in module.named_modules():
            if part.training and isinstance(part, _BatchNorm | _DropoutNd):
                raise ValueError(
                    f"part '{name}' of module {index} ({type(part).__name__}) is in training mode, where a row's "
                    f"features depend on other rows or on chance; call .eval() on the module first"
                )
