"""How a version's bytes get from the trainer to engines: formats and transports, without actors."""
