"""What the command line and the library `spotbench` share: runs found, results read, outcomes as errors.
Nothing here prints or knows a terminal."""
