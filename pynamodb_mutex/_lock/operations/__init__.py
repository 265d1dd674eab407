"""The operations on locks, such as acquire, renew and release, and the state of held locks.

An operation is a generator that yields effects (see `effects`) and contains no I/O, no thread, no clock and no
randomness of its own. The runners in `runtime` execute it; what it decides by is in `protocol`, and the requests
that it sends are in `dynamodb`.
"""
