#!/bin/sh
cd /tests
python -I judge.py
