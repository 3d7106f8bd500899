"""The suites of eval cases that a service keeps out of training, as operators see them."""
