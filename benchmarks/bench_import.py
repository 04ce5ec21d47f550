"""What starting costs: ``import gp_ensembles`` and the command line's help beside ``import torch``, in fresh processes.

    python benchmarks/bench_import.py

Medians over interleaved runs; quote the ratios, not the seconds.
"""

import argparse
import statistics
import subprocess
import sys
import time

PROGRAMS = {
    "python alone": ["-c", "pass"],
    "import gp_ensembles": ["-c", "import gp_ensembles"],
    "import torch": ["-c", "import torch"],
    "gp-ensembles --version": ["-m", "gp_ensembles", "--version"],
    "gp-ensembles --help": ["-m", "gp_ensembles", "--help"],
    "gp_ensembles.auto": ["-c", "import gp_ensembles; gp_ensembles.auto"],
}


def main() -> None:
    """Print seconds and the ratio to ``import torch`` of each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for run in range(arguments.runs + 1):  # the first warms the disk up
        for name, program in PROGRAMS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *program], check=True, stdout=subprocess.DEVNULL)
            if run:
                seconds[name].append(time.perf_counter() - began)
    torch = statistics.median(seconds["import torch"])
    for name, values in seconds.items():
        middle = statistics.median(values)
        print(f"{name:<24}{middle:8.3f} s{middle / torch:8.2f} x import torch")


if __name__ == "__main__":
    main()
