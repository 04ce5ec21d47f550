"""What is checked of a state before anything of it is loaded."""

from collections.abc import Mapping

from torch import Tensor, nn


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
