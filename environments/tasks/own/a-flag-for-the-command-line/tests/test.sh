#!/bin/sh
# Whether tests passed or failed is a verdict; that they could not be run is none, and writes no reward.
cd /tests
python -I -m pytest -q -p no:cacheprovider test_task.py >/logs/verifier/pytest.txt 2>&1
code=$?
cat /logs/verifier/pytest.txt
case $code in
  0) echo 1 >/logs/verifier/reward.txt ;;
  1 | 2) echo 0 >/logs/verifier/reward.txt ;;
esac
