"""The order of arrival: the waiting line in a row, how a fair waiter acquires, and hints that call it."""
