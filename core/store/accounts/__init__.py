"""Those who use the service, and what they did."""
