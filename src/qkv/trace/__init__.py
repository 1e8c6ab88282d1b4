"""What runs inside a model: recorded, changed and drawn."""
