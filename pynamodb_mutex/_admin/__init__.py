"""What people do to locks: create the table, force, close, open, list, repair and release them."""
