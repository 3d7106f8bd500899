"""What users allow to be done with what they say."""
