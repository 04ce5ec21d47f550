"""Execution of a command: order of its arguments, threads, and an exit code with one sentence whatever happens."""

import argparse
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Never

import torch
from tqdm import tqdm

from gp_ensembles.cli.named_configs import refuse_odd_yaml
from gp_ensembles.extras import needs_cli
from gp_ensembles.numerics.cholesky import NumericalError

THREADS = "CPU threads; one is fastest for matrices this small, and several are far slower on a busy machine"
_FLAGS = ("as_published", "explain", "follow", "header", "limit_inputs",
          "quick", "recalibrate", "skip_seen", "strict", "traceback")  # fmt: skip
_LONGEST = 400  # characters of a message
# What bad input, a bad machine or a bad file raise; anything else is a defect of this library.
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
    """Draw, or report on the standard error why not: a failed plot must not lose the results."""
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


def exit_code(program: str, given: Sequence[str], run: Callable[[Sequence[str]], int], kept: str) -> int:
    """Run a command line; errors become one sentence on the standard error."""
    try:
        with _ends_on_request(), needs_cli("this command"):
            return run(given)
    except BrokenPipeError:  # the reader of our output has left; everything is written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as error:
        is_terminated = error.args == (signal.SIGTERM,)
        print(f"{program}: {'terminated' if is_terminated else 'interrupted'}; {kept}", file=sys.stderr)
        return 143 if is_terminated else 130
    except Exception as error:
        if "--traceback" in given or "--traceback=true" in given:
            traceback.print_exc()
        elif isinstance(error, EXPECTED) or is_memory_full(error):
            print(f"{program}: error: {one_sentence(error)}", file=sys.stderr)
        else:
            kind = type(error).__name__
            print(f"{program}: {kind}: {one_sentence(error)} (--traceback shows where)", file=sys.stderr)
        return 2 if isinstance(error, EXPECTED) or is_memory_full(error) else 1


@contextmanager
def _ends_on_request() -> Iterator[None]:
    """Let SIGTERM end the work as an interruption does; only a main thread can install that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.SIGTERM)  # which no handler of ordinary errors catches

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute with this many CPU threads inside, at most as many as there are processors."""
    most = os.cpu_count() or 1
    if number > most:
        raise ValueError(f"--num-threads is {number} and this machine has {most} processors; give at most {most}")
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def progress_bar(name: str, num_rows: int | None, progress: bool) -> "tqdm[Never]":
    """A progress bar of rows, a context manager; outside a terminal it prints a line every few seconds."""
    interval = 0.1 if sys.stderr.isatty() else 5.0
    return tqdm(total=num_rows, desc=name, unit="row", disable=not progress, mininterval=interval)


def read_arguments(given: Sequence[str]) -> list[str]:
    """A command line, :func:`normalized_arguments`, checked for slips that a parser would accept."""
    arguments = normalized_arguments(given)
    for option, value in pairwise([*arguments, "--"]):
        if option.startswith("--") and (option.endswith("=") or not value.strip()):
            raise ValueError(f"{option.rstrip('=').replace('_', '-')} is empty; is a shell variable unset?")
        if option == "--config":
            refuse_odd_yaml(value)
    return arguments


def normalized_arguments(arguments: Sequence[str]) -> list[str]:
    """Arguments with underscores in options, values for flags, and the config first, so that options override it."""
    plain, first = [], []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            name = "--" + name[2:].replace("-", "_")
            given = bool(equals) or (bool(rest) and rest[0].lower() in ("true", "false"))
            word = f"{name}=true" if name[2:] in _FLAGS and not given else name + equals + value
            if name == "--config":
                if not (value if equals else rest and not rest[0].startswith("--")):
                    raise ValueError("--config needs a file: --config configs/e_doebe.yaml")
                first += [name, value] if equals else [name, *rest[:1]]
                rest = rest if equals else rest[1:]
                continue
        plain.append(word)
    return [*plain[:1], *first, *plain[1:]]
