"""The only place that knows Google's libraries, sockets, files and the time. Decisions are made in the core."""

import warnings

# From some months before the end of a Python on, Google's libraries warn whoever imports them: on standard error, in
# the midst of a command that goes on as it did the day before.
warnings.filterwarnings("ignore", "You are using a .*Python version", FutureWarning)
