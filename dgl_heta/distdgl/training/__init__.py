"""Training in a script: module wrappers, backward passes, the end of epochs and of the run."""
