"""The command line; not meant to be imported by programs, which use :mod:`gp_ensembles.streaming` instead.

- ``__main__``, ``running``: arguments, threads, exit codes, and errors as one sentence.
- ``commands``, ``compare``, ``forecast_command``: options of the commands, and what they do.
- ``config``, ``named_configs``: configs from YAML, and those bundled with the package.
- ``tables``, ``seen_rows``: sources of rows, and checks before they are streamed.
- ``scored_stream``, ``predictions``, ``baselines``: the pipeline on a table, its predictions, scores and checkpoints.
- ``out_folder``, ``writing``: the folder of results, and the files of a run.
- ``summary``, ``text_tables``, ``report``: results for readers.
- ``lines``, ``line_session``, ``series``: streams of lines, and tables of many series.
"""
