"""How an external model is made an external model: for messages to those who gave the model itself."""

from gp_ensembles.experts.model_adapter import ModelAdapter


def spelled(value: object) -> str:
    """A model as one would write it."""
    if isinstance(value, type):
        return f"{value.__name__}()"
    name = getattr(value, "__name__", None)
    if isinstance(name, str):
        return name if name.isidentifier() else "function"
    return f"{type(value).__name__}(...)"


def as_adapter(value: object) -> str | None:
    """How a model, a function or a class of models becomes an external model; ``None`` for what cannot be one."""
    if isinstance(value, ModelAdapter) or (isinstance(value, type) and issubclass(value, ModelAdapter)):
        return spelled(value)
    if _has(value, "learn_one", "predict_one"):
        return f"RiverAdapter({spelled(value)})"
    if _has(value, "fit", "predict"):
        return f"RegressorAdapter({spelled(value)})"
    return f"FunctionAdapter({spelled(value)})" if callable(value) and not isinstance(value, type) else None


def check_methods(value: object, kind: str, *methods: str) -> None:
    """Raise unless a model is an object that has some methods.

    Raises:
        TypeError: If it is a class, or lacks one; says what would take it.
    """
    if isinstance(value, type):
        raise TypeError(f"{kind} takes an object, got the class {value.__name__}: call it")
    if not _has(value, *methods):
        other = as_adapter(value)
        hint = "" if other is None else f"; use {other}"
        raise TypeError(f"{kind} takes an object with {' and '.join(methods)}, got {spelled(value)}{hint}")


def _has(value: object, *methods: str) -> bool:
    return all(callable(getattr(value, method, None)) for method in methods)
