"""What commands do with eval suites beside asking them: compare them with a past, and draft cases from it."""
