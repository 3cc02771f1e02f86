"""Foundations that know nothing of LoRAs."""
