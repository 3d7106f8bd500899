"""Those who use the service: their keys, what they did, what they spent."""
