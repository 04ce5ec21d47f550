"""Online dimensionality reduction with ensembles of random-feature Gaussian-process latent variable models.

The models of the paper (Lu et al. 2022, section 6) are those of :func:`ie_gplvm`, over RBF kernels of the squared
length scales ``RBF_VARIANCES``. It returns an :class:`IEGPLVM`, whose methods ``start``, ``update`` and ``transform``
return :class:`~gp_ensembles.papers.gplvm.records.Embeddings` and ``inverse_transform`` a :class:`Reconstruction`.
Another ensemble is ``IEGPLVM`` with custom features, as :func:`rbf_features` makes, and :class:`LatentSettings`.

===============  =======================================================================================================
``presets``      the paper's model
``model``        the model: state, ``start``, ``update``, ``transform``, ``inverse_transform``, ``impute``
``records``      settings, what is returned, checks of what is given
``first_rows``   the first rows: principal components, objective and fit of all experts at once
``embed``        a block of rows embedded by damped Newton steps, weighed and learned: algorithm 2
``neighbors``    the rows kept, and the nearest of them to a new one
``transformer``  the model as a scikit-learn transformer
===============  =======================================================================================================
"""

from gp_ensembles.papers.gplvm.model import IEGPLVM
from gp_ensembles.papers.gplvm.presets import ie_gplvm
from gp_ensembles.papers.gplvm.records import LatentSettings

__all__ = ["IEGPLVM", "LatentSettings", "ie_gplvm"]
