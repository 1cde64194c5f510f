"""What a run writes down for people: metrics, events, TensorBoard files, the summary."""
