"""The search for the recipe that keeps most of every LoRA: candidates, a score, a sweep."""
