"""Versions of weights that stay on one GPU: exported there, read there by other processes.

`cudart` makes the calls; everything else is told a `Runtime`, and runs without a GPU.
"""
