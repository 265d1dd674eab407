"""A show of the mutex: processes compete for one lock; one is killed, another stopped meanwhile.

Run it as ``python -m pynamodb_mutex.demo``. Needs the extra ``demo`` and a POSIX system.
"""
