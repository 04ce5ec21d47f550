"""Atomic writes of files: whatever ends a process, and whenever, a reader finds old files or new ones.

- ``operations``: open, write, truncate, fsync, rename, unlink, mkdir, rmdir, each in one place that tests can watch.
- ``replacing``: one file in one step, and tables that rows are appended to.
- ``transaction``: several files of a folder in one step, by a journal.
- ``checkpoint``: archives of tensors with digests, from untrusted sources too.
- ``lock``: one owner of a folder at a time.
"""
