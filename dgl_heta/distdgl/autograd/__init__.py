"""Rules for autograd with RAF: the order of exchanges, and whose rows a loss may depend on."""
