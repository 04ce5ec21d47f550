"""The experiments of papers that came after, for the command line."""

from studies.follow_ups import active_learning, consensus, stacking
from studies.harness.experiment import Experiment, Paper, Size

PAPER = Paper(
    "follow-ups",
    "Waxman, Llorente, Djuric 2025 (stacking); Polyzos, Lu, Giannakis 2022 (active learning); agents on graphs",
    (
        Experiment(
            "stacking",
            "rules that weigh GARCH experts of daily returns",
            "Experts fitted to the first fifth of the days; later days predicted from all before; rules untuned.",
            stacking.run,
            Size(1),
            Size(1, 400),
            sets=(stacking.SET,),
            published="six of the authors' eight particle filters, priors for squared percent on returns as fractions",
        ),
        Experiment(
            "consensus",
            "an ensemble learned by agents that exchange sums",
            "Sorted inputs dealt out to agents; Metropolis weights; errors against the ensemble of all rows.",
            consensus.run,
            Size(5, 400),
            Size(2, 100),
        ),
        Experiment(
            "active-learning",
            "which row to label next: three rules, their weighted choice, and chance",
            "A pool of 500 rows, ten labels to begin with, one at a time to eighty; all methods on the same draws.",
            active_learning.run,
            Size(20, 500),
            Size(2, 150),
            methods=active_learning.METHODS,
        ),
    ),
)
