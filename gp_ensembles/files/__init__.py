"""Atomic writes of files: whatever ends a process, and whenever, a reader finds old files or new ones.

- ``operations``: open, write, truncate, fsync, rename, unlink, mkdir, rmdir, each in one place that tests can watch.
- ``replacing``: one file in one step, several files of a folder by a journal, and tables that rows are appended to.
- ``checkpoint``: archives of tensors with digests, from untrusted sources too.
- ``lock``: one owner of a folder at a time.
"""
