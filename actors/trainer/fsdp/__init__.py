"""The `fsdp` kind of trainer: a Hugging Face model under FSDP2, on packed rows.

Everything here runs on one worker thread of a rank and may be collective over the ranks.
"""
