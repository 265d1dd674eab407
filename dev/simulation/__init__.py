"""Simulation: the shipped library runs in virtual time, against a DynamoDB in memory and a faulty network.

`schedule` plays random schedules, `explore` all schedules of a small world. `client` is who locks in them, `once` who calls
`once`, `shared` who shares locks. `judge` checks the changes of rows, `handles`, `promises` and `signals` what the library says to
its users, `once_judge` and `shared_judge` what is promised of these; all use `claims`. `world`, `threads`, `network` and `datagrams`
are the simulated machine. `table` and the modules below it (`expressions`, `pages`, `storage`, `documents`, `values`) are the simulated
DynamoDB; `recording`, `replay` and `answers` compare it with a real engine.
For the command line see ``python -m dev.simulation --help``.
"""
