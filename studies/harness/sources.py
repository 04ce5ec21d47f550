"""Sources of a study's tables: a folder with a manifest, or the user's own tables that replace them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, final

from gp_ensembles.data import Table, load_folder, read_csv
from gp_ensembles.data.folder import folder_names


class PaperSet(NamedTuple):
    """A set of a paper.

    Attributes:
        name: What the paper and the command line call it.
        files: Names that it may have in a folder, the best first; its own name if there are none.
        remark: What is to be known where the folder's set is not quite the paper's.
        made_up: Whether the paper draws it at random, and so do we where no table replaces it.
    """

    name: str
    files: tuple[str, ...] = ()
    remark: str = ""
    made_up: bool = False


class FoundSet(NamedTuple):
    """A set that was found.

    Attributes:
        name: The paper's name of it.
        table: Its rows.
        file: Name in the folder; empty for a user's own table.
        note: A sentence on what replaces what; empty if nothing does.
    """

    name: str
    table: Table
    file: str
    note: str

    @property
    def is_own(self) -> bool:
        """Whether it is a user's own table: its columns are inputs as they are, and nothing is undone."""
        return not self.file


@final
class Sources:
    r"""The tables of a folder, and a user's own tables that replace some of them.

    Args:
        folder: A folder with a ``manifest.json``; ``None`` for what needs none.
        own: A user's own tables, each ``NAME=FILE:TARGET``: the paper's name of a set, a file and its target's column;
            all other columns are inputs.

    Raises:
        ValueError: If one of these is written otherwise, or a name comes twice.
        FileNotFoundError: If there is no such file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "arm.csv"
        >>> _ = path.write_text("angle,torque\n0.5,1\n0.25,2\n")
        >>> sources = Sources(None, [f"sarcos={path}:torque"])
        >>> found = sources.find(PaperSet("sarcos"))
        >>> found.table.X.shape, found.note
        (torch.Size([2, 1]), 'sarcos: arm.csv, target torque, in its place')
        >>> sources.find(PaperSet("elevators")) is None
        True
    """

    def __init__(self, folder: Path | None, own: Sequence[str] = ()) -> None:
        self.folder = folder
        self._names = [] if folder is None else folder_names(folder)
        self._own: Mapping[str, tuple[Path, str]] = _parsed(own)

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of the sets that a user's own tables replace."""
        return tuple(self._own)

    def has(self, wanted: PaperSet) -> bool:
        """Whether a set can be had."""
        return wanted.name in self._own or any(name in self._names for name in _files(wanted))

    def find(self, wanted: PaperSet, *, features: Sequence[str] | None = None) -> FoundSet | None:
        """A set, or ``None`` if it is not publicly available.

        Args:
            wanted: The set.
            features: Inputs of the folder's set instead of those that its manifest names.

        Raises:
            ValueError: If its file is malformed.
            FileNotFoundError: If its file does not exist.
        """
        if wanted.name in self._own:
            path, target = self._own[wanted.name]
            table = read_csv(path, target)._replace(name=wanted.name)
            return FoundSet(wanted.name, table, "", f"{wanted.name}: {path.name}, target {target}, in its place")
        for file in _files(wanted):
            if self.folder is not None and file in self._names:
                stands_in = f"{file} stands for {wanted.name}" if file != wanted.name else wanted.name
                note = f"{stands_in}: {wanted.remark}" if wanted.remark else stands_in
                is_plain = file == wanted.name and not wanted.remark
                table = load_folder(self.folder, file, features=features)
                return FoundSet(wanted.name, table, file, "" if is_plain else note)
        return None

    def missing(self, wanted: Sequence[PaperSet]) -> list[str]:
        """Sentences on the sets that are not publicly available, and how to give them."""
        return [_advice(one, self.folder) for one in wanted if not self.has(one)]


def _files(wanted: PaperSet) -> tuple[str, ...]:
    return wanted.files or (wanted.name,)


def _advice(wanted: PaperSet, folder: Path | None) -> str:
    where = "no folder is given with --data" if folder is None else f"{folder} has none"
    names = " or ".join(_files(wanted))
    return (
        f"{wanted.name} is left out: it is read from {names} and {where}; or give --data-set {wanted.name}=FILE:TARGET"
    )


def _parsed(own: Sequence[str]) -> dict[str, tuple[Path, str]]:
    found: dict[str, tuple[Path, str]] = {}
    for text in own:
        name, equals, rest = text.partition("=")
        file, colon, target = rest.rpartition(":")
        if not (name and equals and file and colon and target):
            raise ValueError(f"--data-set is NAME=FILE:TARGET, such as sarcos=arm.csv:torque; got {text}")
        if name in found:
            raise ValueError(f"--data-set names {name} twice")
        if not Path(file).is_file():
            raise FileNotFoundError(f"--data-set {text}: there is no file {file}")
        found[name] = Path(file), target
    return found
