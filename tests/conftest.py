"""What holds for all tests."""

import signal

# A shell without job control starts background jobs with SIGINT ignored, and children inherit that;
# some tests interrupt their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
