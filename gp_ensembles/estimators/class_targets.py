"""The target of a classifier whose classes are known from its labels only."""

from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget, LevelTarget, Target


def class_target(num_classes: int, given: Target | None) -> Target:
    """The kind of target for so many classes, with the link and the update of a given one where they apply."""
    if isinstance(given, LevelTarget):
        return LevelTarget(num_classes, given.latent_update)
    if isinstance(given, BinaryTarget) and num_classes == 2:
        return given
    latent_update = given.latent_update if isinstance(given, BinaryTarget | ClassTarget) else None
    if num_classes == 2 and not isinstance(given, ClassTarget):
        return BinaryTarget(latent_update=latent_update)
    return ClassTarget(num_classes, latent_update)
