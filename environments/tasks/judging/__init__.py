"""What a patch is judged by, beside the tests."""
