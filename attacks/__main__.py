"""``python -m attacks NAME ...``: attacks on the library, each prints a table and writes JSON with ``--out``."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

# The module of an attack has ``main(argv) -> exit code``, and is imported when it is called.
_NAMES = ("bits", "bounds", "damage", "drift", "fuzz", "kills", "mutants", "page", "streams")
ATTACKS = {name: f"attacks.{name}" for name in _NAMES}


def main(argv: Sequence[str] | None = None) -> int:
    """Run an attack; returns its exit code, 2 if there is none of that name."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] not in ATTACKS:
        print(f"attacks: say which: {', '.join(ATTACKS)}", file=sys.stderr)
        return 2
    run: Callable[[Sequence[str]], int] = import_module(ATTACKS[given[0]]).main
    return run(given[1:])


if __name__ == "__main__":
    sys.exit(main())
