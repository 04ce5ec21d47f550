"""The folder of results: one run at a time, created if needed, and completed before anything else is done in it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gp_ensembles.files import operations
from gp_ensembles.files.lock import FolderInUseError, owned
from gp_ensembles.files.replacing import complete


@dataclass(frozen=True)
class Output:
    """Output settings of a run."""

    out: Path  # folder of the results
    progress: bool = True  # show a progress bar with the running score
    checkpoint_seconds: float = 30.0  # seconds between checkpoints while the stream is read
    report: bool = True  # write ``report.html``


@contextmanager
def run_folder(path: Path) -> Iterator[None]:
    """Own the folder of results inside; one that was created for it and stays empty is removed."""
    made = [place for place in (path, *path.parents) if not place.exists()]
    try:
        with ExitStack() as stack:
            try:
                stack.enter_context(owned(path))
            except FolderInUseError:
                raise
            except OSError as error:
                raise _not_writable(path, error) from error
            yield
    finally:
        with suppress(OSError):  # one holds something
            for place in filter(Path.is_dir, made):
                operations.remove_folder(place)


def make_writable(path: Path) -> None:
    """Create a folder if needed, and complete the replacement that a killed run had started in it."""
    make_folder(path)
    try:
        complete(path)
    except OSError as error:
        raise _not_writable(path, error) from error


def make_folder(path: Path) -> None:
    """Create a folder for results."""
    try:
        operations.make_folder(path)
    except OSError as error:
        raise OSError(f"the folder {path} cannot be created: {error.strerror}; choose another --out") from error


def _not_writable(path: Path, error: OSError) -> OSError:
    return OSError(f"the folder {path} cannot be written: {error.strerror}; choose another --out")
