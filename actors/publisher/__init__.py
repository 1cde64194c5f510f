"""The publisher actor: weight epochs as transactions over all engines."""
