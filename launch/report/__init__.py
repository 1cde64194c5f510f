"""What a run leaves behind for people: curve, tables, page."""
