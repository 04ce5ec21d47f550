"""Online dimensionality reduction with ensembles of random-feature Gaussian-process latent variable models."""

from gp_ensembles.gplvm.batch import BatchFit, fit_batch, log_posterior
from gp_ensembles.gplvm.embed import LatentModel, RowEmbedding, embed_rows, embedding_density, embedding_derivatives
from gp_ensembles.gplvm.fourier import latent_features
from gp_ensembles.gplvm.minimize import Minimum, minimize
from gp_ensembles.gplvm.model import IEGPLVM
from gp_ensembles.gplvm.neighbors import RowStore, keep_rows, nearest_rows, row_store
from gp_ensembles.gplvm.pca import PrincipalComponents, principal_components
from gp_ensembles.gplvm.posterior import (
    WeightPosterior,
    information_factor,
    learn_rows,
    predict_rows,
    walk,
    weight_prior,
)
from gp_ensembles.gplvm.presets import RBF_VARIANCES, die_gplvm, dsie_gplvm, ie_gplvm, rbf_features, sie_gplvm
from gp_ensembles.gplvm.records import Embeddings, Reconstruction
from gp_ensembles.gplvm.search import ExactSearch, FaissSearch, NeighborSearch
from gp_ensembles.gplvm.settings import LatentSettings

__all__ = [
    "IEGPLVM",
    "RBF_VARIANCES",
    "BatchFit",
    "Embeddings",
    "ExactSearch",
    "FaissSearch",
    "LatentModel",
    "LatentSettings",
    "Minimum",
    "NeighborSearch",
    "PrincipalComponents",
    "Reconstruction",
    "RowEmbedding",
    "RowStore",
    "WeightPosterior",
    "die_gplvm",
    "dsie_gplvm",
    "embed_rows",
    "embedding_density",
    "embedding_derivatives",
    "fit_batch",
    "ie_gplvm",
    "information_factor",
    "keep_rows",
    "latent_features",
    "learn_rows",
    "log_posterior",
    "minimize",
    "nearest_rows",
    "predict_rows",
    "principal_components",
    "rbf_features",
    "row_store",
    "sie_gplvm",
    "walk",
    "weight_prior",
]
