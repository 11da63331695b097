"""What every loss is made of: pairs, inputs, state, checks, the batches of all processes."""
