"""The papers' figures and tables again: ``python -m studies doebe experiment-1``.

A study may import anything of the library; nothing imports a study, and none is installed with the library. Each
paper is a package (``ie_gp`` and ``ie_gplvm``, ``doebe``, ``maskerade``, ``knots``, ``fusion``, ``follow_ups``,
``optimization``) of methods, data sets
and tables, with ``study.py`` for what a command runs and ``experiments.py`` for what the command line
knows of it; ``harness`` holds what they share.
"""
