"""What is made once and needed again, in memory or on the disk; this folder knows nothing of LoRAs."""
