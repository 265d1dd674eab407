"""Simulation: the shipped library runs in virtual time, against a DynamoDB in memory and a faulty network.

`schedule` plays random schedules, `explore` all schedules of a small world. `judge` checks the changes of rows in them, and
`handles` what the library tells its users; both use `claims`. `world`, `threads`, `network` and `datagrams` are the simulated
machine. `table` and the modules below it (`expressions`, `pages`, `storage`, `documents`, `values`) are the simulated
DynamoDB; `recording`, `replay` and `answers` compare it with a real engine.
For the command line see ``python -m dev.simulation --help``.
"""
