"""What the simulator demands of each action: one file a family of actions."""
