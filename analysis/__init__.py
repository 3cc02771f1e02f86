"""How the LoRAs of a stack relate: exact from their factors, sampled only where values are needed."""
