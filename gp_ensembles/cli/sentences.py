"""Errors as one sentence: what the command line says instead of a traceback."""

import argparse
import difflib
import re

from gp_ensembles.numerics.cholesky import NumericalError

# What bad input, a bad machine or a bad file raise; anything else is a defect of this library.
_LONGEST = 400
# What a config may name; kept here so that a misspelled name finds its neighbor.
KNOWN_CLASSES = (
    "OEBE", "DOEBE", "SOEBE", "SDOEBE", "EDOEBE", "IEGP", "SIEGP", "DIEGP", "DSIEGP", "Auto",
    "FourierBasis", "HilbertBasis", "RadialBasis", "PolynomialBasis", "LinearBasis", "SplineBasis",
    "QuasiNewton", "GradientSteps",
    "RealTarget", "UnknownNoiseTarget", "OutlierTarget", "BinaryTarget", "ClassTarget", "LevelTarget", "CountTarget",
    "Laplace", "MomentMatching",
)  # fmt: skip
EXPECTED = (ValueError, TypeError, OSError, NumericalError, ImportError, argparse.ArgumentError, MemoryError)


def one_sentence(error: BaseException) -> str:
    """An error's message on one line.

    Example:
        >>> one_sentence(FileNotFoundError(2, "No such file or directory", "a.csv"))
        'a.csv: No such file or directory'
    """
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, argparse.ArgumentError):
        return _short(_from_parser(str(error.message)))
    if str(error).startswith("Does not validate"):  # the parser's words in another exception
        return _short(_from_parser(str(error)))
    text = " ".join(str(error).split())
    return _short(text) or type(error).__name__


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _plainer(reason: str) -> str:
    """What a parser says of a class, in the words of a config."""
    found = re.search(r"Expected a dot import path string: (\w+)", reason)
    if found:
        close = difflib.get_close_matches(found[1], KNOWN_CLASSES, n=1)
        hint = f"did you mean {close[0]}" if close else f"the classes are {', '.join(sorted(KNOWN_CLASSES))}"
        return f"there is no class {found[1]}; {hint}"
    found = re.search(r"Expected an instantiatable class, but (?:\w+\.)*(\w+) is abstract", reason)
    if found:
        return f"a {found[1]} is given by its class: write class_path, with its settings under init_args"
    return reason


def _from_parser(message: str) -> str:
    """The nested message of a parser: the path of the key, and what is wrong with it."""
    lines = [line.strip().removeprefix("- ") for line in message.splitlines()]
    keys = [found[1] for line in lines if (found := re.match(r'Parser key "(.+)":', line))]
    seen: list[str] = []
    for key in keys:  # a key may be said again with its parents
        if not seen or not seen[-1].endswith(key):
            seen.append(key.removeprefix(".".join(seen) + "."))
    rest = [re.sub(r'^Parser key ".+": ?', "", line) for line in lines]
    noise = (
        "Problem with given class_path", "Does not validate", "Subtypes:", "Errors:", "Given value",
        "Expected a <class 'NoneType'>",
    )  # fmt: skip
    reasons = [line.rstrip(".:") for line in rest if line and not line.startswith(noise)]
    reasons = [re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", reason).replace("NoneType", "null") for reason in reasons]
    text = "; ".join(dict.fromkeys(_plainer(reason) for reason in reasons))
    return f"{'.'.join(seen)}: {text}" if seen else text
