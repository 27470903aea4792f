"""Whole training steps: activations, parameters, gradients and states of optimizers."""
