"""`auto` on Friedman's functions, which no folder holds: beside the marks of other ensembles in `README.md`.

    python benchmarks/auto_marks.py --rows 10000

Rows as in the reproduction of Waxman and Djuric (2024): hyperparameters from the first 1 000, noise 0.1 and 1.
"""

import argparse

import torch

from gp_ensembles.ensembles.presets import auto
from studies.doebe.sets import load_stream

MARKS = {"friedman1": 2.020, "friedman2": 2.404}
CHUNK = 1000


def main() -> None:
    """Print the mean log score of the mixture over all rows after the warm-up, in standardized units."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, mark in MARKS.items():
        stream = load_stream(name, None, arguments.rows, seed=arguments.seed)
        generator = torch.Generator().manual_seed(arguments.seed)
        online = auto.fit(stream.warm_X, stream.warm_y, generator=generator)
        total = sum(
            float(online.observe(X, y).log_prob.nansum())
            for X, y in zip(stream.X.split(CHUNK), stream.y.split(CHUNK), strict=True)
        )
        print(f"{name}: {total / len(stream.y):.3f} (mark {mark})", flush=True)


if __name__ == "__main__":
    main()
