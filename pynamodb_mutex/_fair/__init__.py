"""The order of arrival: the waiting line in a row, the acquisition of a fair waiter, and hints that call it."""
