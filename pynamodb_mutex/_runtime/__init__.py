"""What executes operations: runners, threads, the state of the process, the delivery of events."""
