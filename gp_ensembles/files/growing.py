"""Tables that rows are appended to, and cut back to the rows that a checkpoint knows."""

import os
from pathlib import Path
from typing import final

from gp_ensembles.files.operations import OpenFile
from gp_ensembles.files.replacing import about


@final
class GrowingTable:
    """An existing text file that is appended to, and is on the disk up to the last :meth:`sync`.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it is shorter than the size; it stays as it is.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self._file = OpenFile(path, os.O_RDWR)
        self._is_safe = True
        if size is not None:
            found = path.stat().st_size
            if found < size:
                self._file.close()
                raise ValueError(
                    f"{path} has {found} bytes where the checkpoint knows {size}; it is truncated or of another run, "
                    f"so start again, or continue into another folder"
                )
            self._file.truncate(size)
            self._is_safe = False
        self._file.seek(0, os.SEEK_END)

    def append(self, text: str) -> None:
        """Hand text to the operating system: a process that is killed now loses none of it.

        Raises:
            OSError: If it cannot be written; a part of it may stand there.
        """
        self._is_safe = False
        try:
            self._file.write(text.encode("utf-8"))
        except OSError as error:
            raise about(error, self.path) from error

    def sync(self) -> None:
        """Write all of it to the disk: a machine that stops now loses none of it."""
        if not self._is_safe:
            self._file.fsync()
            self._is_safe = True

    def close(self) -> None:
        """Close it without a sync."""
        self._file.close()
