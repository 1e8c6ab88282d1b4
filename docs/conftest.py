"""The scripts of docs/found are run by hand and by tests/check/test_found.py, not collected."""

collect_ignore = ["found"]
