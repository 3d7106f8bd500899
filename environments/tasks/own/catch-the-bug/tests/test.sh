#!/bin/sh
# The agent's test must fail on the library as it is, and pass on the library mended.
cd /tests
python -I judge.py
