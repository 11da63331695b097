"""Trainings in this process and in processes of their own are compared bit for bit: both take one thread."""

import torch

torch.set_num_threads(1)  # as testing.processes does; a fixture would come after those of a module
