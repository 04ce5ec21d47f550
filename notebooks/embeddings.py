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
# # Digits and a machine with eight sensors, embedded
#
# Rows with many entries arrive one after another: sensors, spectra, images. Each gets a place on a map of two
# coordinates as it comes, from an ensemble of Gaussian-process latent variable models that learn online (IE-GPLVM, Lu
# et al. 2022). First handwritten digits, then a machine whose sensors fail and drift, then the same as a scikit-learn
# transformer.

# %%
# %matplotlib inline
import torch
from gpytorch.kernels import MaternKernel
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gp_ensembles.estimators.latent import EnsembleGPLVM
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.gplvm import IEGPLVM, die_gplvm, ie_gplvm
from gp_ensembles.plots import plot_embedding

torch.set_num_threads(1)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def neighbor_error(places, label):
    """Share of rows whose nearest other row has another label."""
    nearest = NearestNeighbors(n_neighbors=1).fit(places).kneighbors(return_distance=False)[:, 0]
    return float((label[nearest] != label).double().mean())


# %% [markdown]
# ## Digits
#
# 400 images of 8 x 8 pixels, shuffled. The first 100 are embedded together: places and two variances of each expert
# are those of the largest posterior density. Then every row is placed where the Gaussian processes explain it best,
# searched from where its three nearest neighbors lie, and learned at once. Pixels that are constant in the first
# images say nothing; we leave them out.

# %%
digits = load_digits()
order = torch.randperm(len(digits.target), generator=seeded())[:400]
label = torch.tensor(digits.target)[order]
rows = torch.tensor(digits.data, dtype=torch.float64)[order]
rows = rows[:, rows[:100].std(0) > 0]

model = ie_gplvm(rows.shape[1], generator=seeded())
first = model.start(rows[:100])
seen = model.update(rows[100:], block_size=50)  # 1 is the algorithm; blocks are faster, and lose little
model.log_weights.exp().round(decimals=3), model.best_expert

# %% [markdown]
# For comparison, the principal components of all rows together.

# %%
flat = torch.tensor(PCA(2).fit_transform(rows.numpy()))
names = [str(int(digit)) for digit in label]
plot_embedding(flat, names, title=f"principal components of all rows, 1-NN error {neighbor_error(flat, label):.1%}")

# %% [markdown]
# Every expert has a latent space of its own. What the algorithm reports, `seen.embedding`, is the place in the space
# of the expert that explains that row best (`seen.expert`). To compare rows, all of them should lie in one space:
# that of `best_expert`, under which all rows so far are the most probable.

# %%
places = torch.cat([first.by_expert, seen.by_expert], dim=1)[model.best_expert]
plot_embedding(places, names, title=f"digits, 1-NN error {neighbor_error(places, label):.1%}")

# %% [markdown]
# ## A machine with eight sensors
#
# The hidden state is an angle, each sensor is a wave of it, and slowly everything wears. Three sensors fail in each
# batch before it is repaired: how well are they filled in? A model whose weights walk at random (`die_gplvm`) forgets
# what is worn out.

# %%
source, num_rows, broken = seeded(), 400, [1, 4, 6]
angle = 6.28 * torch.rand(num_rows, 1, generator=source, dtype=torch.float64)
phase = torch.linspace(0, 5.25, 8, dtype=torch.float64)
wear = torch.linspace(0, 1.5, num_rows, dtype=torch.float64).unsqueeze(-1)
gain = torch.randn(8, generator=source, dtype=torch.float64)
speed = torch.tensor([1.0, 1, 1, 2, 2, 2, 3, 3], dtype=torch.float64)
waves = torch.sin(speed * angle + phase + wear * gain)
waves = waves + 0.03 * torch.randn(num_rows, 8, generator=source, dtype=torch.float64)


def errors(machine):
    """Root mean squared error of what was filled in, batch by batch."""
    machine.start(waves[:100])
    found = []
    for batch in waves[100:].split(100):
        gaps = batch.clone()
        gaps[:, broken] = torch.nan
        found.append(float((machine.impute(gaps) - batch)[:, broken].square().mean().sqrt()))
        machine.update(batch, block_size=50)
    return torch.tensor(found)


static, dynamic = ie_gplvm(8, 2, 20, generator=seeded()), die_gplvm(8, 2, 20, generator=seeded())  # 20 frequencies
torch.stack([errors(static), errors(dynamic)]).round(decimals=2)

# %% [markdown]
# A place maps back to a row, with the uncertainty of weights and noise together. Far from all rows seen, it is the
# prior's.

# %%
walk = torch.stack([torch.linspace(-1, 6, 5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)], dim=-1)
back = dynamic.inverse_transform(walk, torch.full((5,), dynamic.best_expert))
torch.cat([walk, back.variance[:, :1].sqrt()], dim=-1).round(decimals=2)  # place and standard deviation


# %% [markdown]
# ## Other kernels, and scikit-learn
#
# Any stationary GPyTorch kernel can be an expert. `EnsembleGPLVM` is the same as a scikit-learn transformer that
# takes gaps, learns in pieces and fits in a pipeline; with a `preset` of your own it takes your kernels, too.


# %%
def rough(num_outputs, num_latent, num_frequencies, *, settings, generator):
    kernels = [MaternKernel(nu=2.5).double() for _ in range(3)]
    for kernel, lengthscale in zip(kernels, (0.5, 1.0, 2.0), strict=True):
        kernel.lengthscale = lengthscale
    features = RandomFourierFeatures.from_kernels(kernels, num_latent, 2 * num_frequencies, generator=generator)
    return IEGPLVM(features, num_outputs, settings=settings)


embedder = EnsembleGPLVM(n_components=2, warmup=100, block_size=50, preset=rough, random_state=0)
pipeline = make_pipeline(StandardScaler(), embedder).fit(waves[:200].numpy())
pipeline.transform(waves[200:203].numpy()).round(2), embedder.expert_weights_.round(3)

# %% [markdown]
# For a file: `gp-ensembles embed ROWS.csv --label kind --out out/map` writes places, weights, scores and a picture,
# goes on after an interruption (`--resume`), and says what is wrong with a row by its name.
