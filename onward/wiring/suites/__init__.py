"""The eval suites that the settings name, for all that must not learn what is in them."""
