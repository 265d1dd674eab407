#!/bin/sh
# What cron starts on each machine: the same job, at the same time.
exec pynamodb-mutex run nightly-report --if-locked skip --deadline 600 --verbose -- \
    python "$(dirname "$0")/report.py" "$@"
