# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Online embedding of handwritten digits
#
# Images arrive one at a time, and each gets a position on a two-dimensional map on arrival, from an ensemble of
# Gaussian process latent variable models that learn online (IE-GPLVM, Lu et al. 2022). Principal components of all
# images are shown for comparison.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from gp_ensembles.papers.gplvm import ie_gplvm

torch.set_num_threads(1)


def neighbor_error(places, label):
    """Share of rows whose nearest other row has another label."""
    nearest = (
        NearestNeighbors(n_neighbors=1)
        .fit(places)
        .kneighbors(return_distance=False)[:, 0]
    )
    return float((label[nearest] != label).double().mean())


def draw(places, title):
    """Rows in a plane, a color for each digit."""
    _, axis = plt.subplots(layout="constrained")
    for digit in range(10):
        axis.scatter(*places[label == digit].T, s=12, label=str(digit))
    axis.set_title(f"{title}, 1-NN error {neighbor_error(places, label):.1%}")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


# %% [markdown]
# 300 images of 8 x 8 pixels, shuffled. The first 100 are embedded together: positions and two variances of each expert
# maximize the posterior density. Then every row is placed where the Gaussian processes explain it best, by a search
# that starts from its three nearest neighbors, and learned at once. Pixels that are constant in the first
# images carry no information; we leave them out.

# %%
digits = load_digits()
order = torch.randperm(
    len(digits.target), generator=torch.Generator().manual_seed(0)
)[:300]
label = torch.tensor(digits.target)[order]
rows = torch.tensor(digits.data, dtype=torch.float64)[order]
rows = rows[:, rows[:100].std(0) > 0]

model = ie_gplvm(rows.shape[1], generator=torch.Generator().manual_seed(0))
first = model.start(rows[:100])
# 1 is the paper's algorithm; larger blocks are faster and lose little
seen = model.update(rows[100:], block_size=50)
weights, joint = model.log_weights, model.log_joint
print(
    "nats behind the best, by weight:       ",
    [round(v) for v in (weights.max() - weights).tolist()],
)
print(
    "nats behind the best, by joint density:",
    [round(v) for v in (joint.max() - joint).tolist()],
)
print(f"best by weight: expert {int(weights.argmax())}")
print(f"best_expert: {model.best_expert}")

# %% [markdown]
# Two experts are reported as best, by different criteria. A weight measures how well the rows after the first 100 are
# explained from their positions: expert 2 explains them best, by so many nats that it has all the weight. The joint
# density includes all rows, the first 100 too, and also how probable the positions are: those of experts 0 and 1 are
# closer to the origin, which puts both ahead, nearly level with each other.
#
# For comparison, the principal components of all rows together.

# %%
flat = torch.tensor(PCA(2).fit_transform(rows.numpy()))
draw(flat, "principal components of all rows")

# %% [markdown]
# Every expert has its own latent space. The algorithm's output, `seen.embedding`, is the position in the space
# of the expert that explains that row best (`seen.expert`). To compare rows, put all of them in one space:
# that of `best_expert`, under which all rows so far and their positions are the most probable.

# %%
places = torch.cat([first.by_expert, seen.by_expert], dim=1)[model.best_expert]
draw(places, "digits")
