"""The FSDP2 trainer: sharded model, packed batches, checkpoints, export."""
