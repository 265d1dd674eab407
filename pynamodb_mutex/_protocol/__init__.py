"""The rules of the protocol: what is decided from values that are handed in. No I/O, no clock, no state of a process."""
