"""PynamoDB's own tests, as they are and with row locks of either form on every model of theirs.

    python -m dev.compat

What they show about the mixin is which calls behave otherwise with it. The differences that are meant
stand, with their reasons, in `docs/compatibility.csv`; the program fails for any other.
"""
