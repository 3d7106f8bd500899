"""What operators are told."""
