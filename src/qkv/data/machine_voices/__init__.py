"""Digits said by machines, which ship with the package; README.md says how they were made."""
