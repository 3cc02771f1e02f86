"""What is kept between runs, and what is kept within one; it knows nothing of LoRAs."""
