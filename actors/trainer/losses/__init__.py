"""What is optimised: pure functions over tensors of loss tokens, without model or data.

All per-token tensors hold loss tokens only, one after the other: positions without loss never
enter, so nothing that stands in them (NaN included) can reach a sum or a gradient.
"""
