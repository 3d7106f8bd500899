"""Orders to erase what a user said, on the command line."""
