"""What the newest turns and rewards say: curves, shares, intervals, speed."""
