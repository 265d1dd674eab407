"""The rules of the protocol, as pure decisions from the values that are handed in.

No I/O, no clock, no randomness, no state of the process. `claim` and `outcome` decide whose a lock is, `server_time`
bounds server time, `schedule` has the times of polls, retries and renewals, `messages` shows foreign text. The operations in `pynamodb_mutex._lock.operations` turn the decisions into requests.
"""
