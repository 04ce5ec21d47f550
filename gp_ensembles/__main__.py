"""``python -m gp_ensembles`` is the command line."""

import sys

from gp_ensembles.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
