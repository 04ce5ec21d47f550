"""``gp-ensembles`` and ``python -m gp_ensembles``: the command line, which needs the extra ``cli``."""

import sys

from gp_ensembles.extras import MissingExtraError, needs_cli


def main() -> int:
    """Run a command; see :func:`gp_ensembles.cli.__main__.main` for the exit codes, 2 where the extra is missing."""
    try:
        with needs_cli("the command line"):
            from gp_ensembles.cli.__main__ import main as run
    except MissingExtraError as error:
        print(f"gp-ensembles: error: {error}", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
