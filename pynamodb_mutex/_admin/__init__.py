"""What people do to locks: create the table, force, list, repair and release them."""
