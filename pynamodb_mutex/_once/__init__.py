"""Work that is done once: the rows of its results, and the runs that record them."""
