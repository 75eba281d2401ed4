"""What runs in which order: one file per algorithm."""
