"""What executes operations: the runner for threads, the threads, the state of the process, the delivery of events.

All threads of the library are started here. It knows nothing of the protocol: an operation
(`pynamodb_mutex._lock.operations`) is a generator that yields effects, and a runner carries them out.
`run_on_thread` is the runner (that for tasks is in `pynamodb_mutex._tasks`), `process` has the state and the monitor that guards it,
`notifications` delivers signals and log records, `threads` starts all threads, `callers` distinguishes threads and
tasks, `clock` reads the local time.
"""
