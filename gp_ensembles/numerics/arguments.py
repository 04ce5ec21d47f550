"""Checks that an argument is an instance of a class, with errors that say what was given instead."""


def check_made(argument: str, value: object, kind: type, example: str) -> None:
    """Raise unless an argument is an instance of a class, with a hint if it is the class itself."""
    if not isinstance(value, kind):
        raise TypeError(f"{argument} must be an object such as {example}, got {describe_argument(value)}")


def describe_argument(value: object) -> str:
    """Text of an argument for messages, with a hint if it is a class instead of an object."""
    if isinstance(value, type):
        return f"the class {value.__name__}: instantiate it"
    shape = getattr(value, "shape", ())  # of tensors, arrays and frames
    return f"{type(value).__name__} of shape {tuple(shape)}" if shape else repr(value)
