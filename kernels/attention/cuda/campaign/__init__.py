"""What is run by hand on a GPU: comparing tiles, timing the ladder, and the tables made of the results."""
