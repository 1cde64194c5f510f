"""One file for each page of the monitor: a pure function from the model to lines."""
