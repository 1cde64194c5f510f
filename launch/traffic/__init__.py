"""What `milepost tap` makes of copied messages: which edge, which of them, and in which words."""
