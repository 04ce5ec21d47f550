"""Errors as one sentence, printed instead of a traceback."""

import argparse
import re
import sys
from collections.abc import Callable

from gp_ensembles.extras import needs_cli
from gp_ensembles.numerics.cholesky import NumericalError

# What bad input, a bad machine or a bad file raise; anything else is a defect of this library.
_LONGEST = 400
EXPECTED = (ValueError, TypeError, OSError, NumericalError, ImportError, argparse.ArgumentError, MemoryError)


def is_memory_full(error: BaseException) -> bool:
    """Whether an error of torch means that memory is exhausted."""
    return isinstance(error, RuntimeError) and ("allocate memory" in str(error) or "out of memory" in str(error))


def one_sentence(error: BaseException) -> str:
    """An error's message on one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, argparse.ArgumentError):
        return _short(_from_parser(str(error.message)))
    if str(error).startswith("Does not validate"):  # the parser's words in another exception
        return _short(_from_parser(str(error)))
    if is_memory_full(error) or isinstance(error, MemoryError):
        return "not enough memory; use fewer features or experts, or smaller blocks (--block_size)"
    text = " ".join(str(error).split())
    return _short(text) or type(error).__name__


def drawn_if_possible(what: str, draw: Callable[[], object]) -> None:
    """Draw, or report on the standard error why not: results must not be lost with their picture."""
    try:
        with needs_cli(what):
            draw()
    except ImportError as error:
        print(f"no {what}: {error}", file=sys.stderr)
    except Exception as error:
        kind = "" if isinstance(error, EXPECTED) else f"{type(error).__name__}: "
        print(f"no {what}: {kind}{one_sentence(error)}; all results are in the folder", file=sys.stderr)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _from_parser(message: str) -> str:
    """The nested message of a parser as the path of the key and what is wrong with it."""
    lines = [line.strip().removeprefix("- ") for line in message.splitlines()]
    keys = [found[1] for line in lines if (found := re.match(r'Parser key "(.+)":', line))]
    seen: list[str] = []
    for key in keys:  # a key may be repeated with its parents
        if not seen or not seen[-1].endswith(key):
            seen.append(key.removeprefix(".".join(seen) + "."))
    rest = [re.sub(r'^Parser key ".+": ?', "", line) for line in lines]
    noise = (
        "Problem with given class_path", "Does not validate", "Subtypes:", "Errors:", "Given value",
        "Expected a <class 'NoneType'>",
    )  # fmt: skip
    reasons = [line.rstrip(".:") for line in rest if line and not line.startswith(noise)]
    reasons = [re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", reason).replace("NoneType", "null") for reason in reasons]
    text = "; ".join(dict.fromkeys(reasons))
    return f"{'.'.join(seen)}: {text}" if seen else text
