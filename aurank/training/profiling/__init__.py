"""Where the time of a training step goes: phases put around its parts, steps that are measured, what they say."""
