"""Orders to erase, what they erase in the store, and keys for what lies outside of it."""
