"""The report of a run: one HTML file that opens without a network.

- :mod:`~gp_ensembles.cli.report.history`: what is kept of a run while it goes on, in constant memory.
- :mod:`~gp_ensembles.cli.report.bins`: series of which the room never grows.
- :mod:`~gp_ensembles.cli.report.families`: readable names of experts.
- :mod:`~gp_ensembles.cli.report.events`: what was done to rows and experts, counted as the run goes on.
- :mod:`~gp_ensembles.cli.report.figures`: the plots.
- :mod:`~gp_ensembles.cli.report.findings`: the headings.
- :mod:`~gp_ensembles.cli.report.tables`: the tables.
- :mod:`~gp_ensembles.cli.report.page`: the file.
"""
