"""Predictive distributions of an ensemble: mixtures over its experts, one for each row, behind one interface.

:class:`Mixture` (normal components), :class:`StudentTMixture` (unknown noise) and :class:`LatentMixture` (classes,
levels and counts: a likelihood over normal latent values; ``counts`` has the distribution functions of counts).
:class:`Recalibrated` is one of the first two through a monotone map of its distribution function, and
:class:`WithPointMass` one of these three in which one value has its own probability. All have the methods of
:class:`Distribution` and are exact: quantiles, densities and draws are the mixture's own.
"""

from gp_ensembles.distributions.interface import Distribution
from gp_ensembles.distributions.latent_mixture import LatentMixture
from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.distributions.point_mass import WithPointMass
from gp_ensembles.distributions.recalibrated import Recalibrated
from gp_ensembles.distributions.student_t_mixture import StudentTMixture

__all__ = ["Distribution", "LatentMixture", "Mixture", "Recalibrated", "StudentTMixture", "WithPointMass"]
