"""Work that a room hands to a process of its own: it may crash, hang or be ended, and the server lives on."""
