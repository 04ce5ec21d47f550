"""The command line. Nothing here is meant to be imported by a program; use :mod:`gp_ensembles.streaming` instead.

- ``__main__``, ``running``: words into a command, threads, exit codes, errors as one sentence (``error_messages``).
- ``stream_commands``, ``commands``, ``compare``, ``demo``: what ``stream``, ``resume``, ``compare``, ``demo`` do.
- ``config``, ``named_configs``: what a run is, read from YAML; the configs that travel with the package.
- ``tables``: where rows come from, what is checked before they are streamed.
- ``scored_stream``, ``predictions``, ``discrete``, ``baselines``: the pipeline on a table, its predictions and scores.
- ``out_folder``, ``writing``, ``checkpoint``: the folder of results and who owns it, what a run writes, checkpoints.
- ``summary``, ``text_tables``, ``pictures``: what a run came to, for the eye.
"""
