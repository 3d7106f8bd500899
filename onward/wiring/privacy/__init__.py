"""The building of what erases, and of what removes by age."""
