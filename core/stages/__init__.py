"""What a stage is, and the one runner of them all."""
