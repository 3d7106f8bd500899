"""Orders to erase: routes, and what each would remove."""
