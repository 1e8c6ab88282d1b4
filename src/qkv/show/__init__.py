"""What people look at: one visual language for plots and pages, and files that appear whole."""
