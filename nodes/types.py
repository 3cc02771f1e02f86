"""The words that our nodes share: socket types, option lists, the menu they stand in."""

CATEGORY = "LoRA Optimizer"

LORA_STACK = "LORA_STACK"
LORA_DATA = "LORA_DATA"
TUNER_DATA = "TUNER_DATA"
MERGE_SETTINGS = "MERGE_SETTINGS"
OPTIMIZER_SETTINGS = "OPTIMIZER_SETTINGS"

CONFLICT_MODES = ("all", "low_conflict", "high_conflict")
KEY_FILTERS = ("all", "shared_only", "unique_only", "audio_only", "no_audio")

STRENGTH_LIMIT = 10.0
STRENGTH_STEP = 0.05
