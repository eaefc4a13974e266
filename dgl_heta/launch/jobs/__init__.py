"""Jobs on workers of this machine: a training, a prediction, a profile of a cache.

Each is started from Python as from the command line: it checks what is asked, writes a job for
the workers, runs them and says what came of it. None prints; progress goes to a receiver of events.
"""
