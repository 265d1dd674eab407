"""Run the command line: ``python -m pynamodb_mutex.cli``."""

from pynamodb_mutex.cli import main

main()
