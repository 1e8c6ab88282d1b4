"""The handwritten digits that ship with the package; README.md says where they come from."""
