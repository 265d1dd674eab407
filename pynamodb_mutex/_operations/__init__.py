"""What is done with locks, as generators that yield effects. No I/O, no thread, no clock of its own."""
