"""What the stages that run PyTorch share: factories, operators, the memory meter."""
