"""Real Kafka, PostgreSQL and Redis for tests and a first look: no containers, one directory, on 127.0.0.1."""
