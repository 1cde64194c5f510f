"""`milepost view`: the runs of a folder as pages in a browser, read-only and on loopback only."""
