"""The command line; not meant to be imported by programs, which use :mod:`gp_ensembles.streaming` instead.

- ``__main__``, ``running``: arguments, threads, exit codes; errors as one sentence (``error_messages``).
- ``stream_commands``, ``forecast_command``: options of the commands; ``commands``, ``compare``: what they do.
- ``config``, ``named_configs``: configs from YAML, and those bundled with the package.
- ``tables``, ``seen_rows``, ``bad_rows``: sources of rows, and checks before they are streamed.
- ``scored_stream``, ``predictions``, ``baselines``: the pipeline on a table, its predictions and scores.
- ``out_folder``, ``writing``, ``checkpoint``: the folder of results, the files of a run, checkpoints.
- ``summary``, ``text_tables``, ``pictures``, ``report``: results for readers.
- ``lines``, ``series``: streams of lines, and tables of many series.
"""
