"""Training on one worker: `setup` builds an `engine` (steps), which `loop` runs (epochs); `tasks`
say what is trained for, `checkpoint` keeps it and `trained_model` what it ends with, `caches` hold
feature rows near."""
