"""What autograd must keep with RAF: the order of exchanges, whose rows a loss is of."""
