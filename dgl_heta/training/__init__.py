"""Training on one worker: `setup` builds an `engine` (steps), which `loop` runs (epochs); `tasks`
say what is trained for, `checkpoint` keeps it, `caches` hold feature rows near."""
