"""Later papers of the same authors: online stacking, experts that share sums over a network, active learning."""
