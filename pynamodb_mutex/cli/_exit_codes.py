"""Exit codes that any command may have. Imports nothing, for the entry point uses it before click is known to be there."""

FAILED = 1
"""A failure, for which standard error gives the reason."""

INTERRUPTED = 130
"""After Ctrl-C: 128 + SIGINT."""

UNREAD = 141
"""The reader of standard output has gone: 128 + SIGPIPE."""
