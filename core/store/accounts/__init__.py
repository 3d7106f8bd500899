"""Those who use the service: their keys, and what they did."""
