"""The command line. Nothing here is meant to be imported by a program; use :mod:`gp_ensembles.ensembles` instead.

- ``__main__``, ``running``: words into a command, threads, exit codes, errors as one sentence (``sentences``).
- ``stream_commands``, ``commands``, ``compare``, ``demo``: what ``stream``, ``resume``, ``compare``, ``demo`` do.
- ``config``, ``named_configs``: what a run is, read from YAML; the configs that travel with the package.
- ``tables``, ``preparation``: where rows come from, what is checked before they are streamed.
- ``session``, ``predictions``, ``discrete``, ``baselines``: the stream itself, its predictions and scores.
- ``writing``, ``checkpoint``, ``torch_files``: the folder of a run, checkpoints.
- ``summary``, ``text_tables``, ``pictures``, ``drawing``: what a run came to, for the eye.
- ``embed``, ``optimize``: the commands of these names.
"""
