"""Nothing left behind: what a run owns, written down, and taken away after any death.

This folder imports the standard library only: the janitor process stays small, and `milepost reap`
works where nothing else of a run does.
"""
