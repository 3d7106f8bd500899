"""What operators are told, and what they excluded."""
