"""The ComfyUI adapter: one node a file, the tables ComfyUI asks for, and our name before each log line."""

import logging

from ..core.log import log
from ..core.text import whole
from .lora_merge_formula import LoRAMergeFormula
from .lora_merge_settings import LoRAMergeSettings
from .lora_optimizer import LoRAOptimizer
from .lora_optimizer_settings import LoRAOptimizerSettings
from .lora_optimizer_simple import LoRAOptimizerSimple
from .lora_stack import LoRAStack
from .lora_stack_dynamic import LoRAStackDynamic
from .save_merged_lora import SaveMergedLoRA

NODE_CLASS_MAPPINGS = {
    "LoRAStack": LoRAStack,
    "LoRAStackDynamic": LoRAStackDynamic,
    "LoRAOptimizer": LoRAOptimizer,
    "LoRAOptimizerSimple": LoRAOptimizerSimple,
    "SaveMergedLoRA": SaveMergedLoRA,
    "LoRAMergeSettings": LoRAMergeSettings,
    "LoRAOptimizerSettings": LoRAOptimizerSettings,
    "LoRAMergeFormula": LoRAMergeFormula,
}

NODE_DISPLAY_NAME_MAPPINGS = {
    "LoRAStack": "LoRA Stack",
    "LoRAStackDynamic": "LoRA Stack (Dynamic)",
    "LoRAOptimizer": "LoRA Optimizer (Legacy)",
    "LoRAOptimizerSimple": "LoRA Optimizer",
    "SaveMergedLoRA": "Save Merged LoRA",
    "LoRAMergeSettings": "LoRA Merge Settings",
    "LoRAOptimizerSettings": "LoRA Optimizer Settings",
    "LoRAMergeFormula": "LoRA Merge Formula",
}

LOG_PREFIX = "[LoRA Alloy]"


class _Prefix(logging.Filter):
    """ComfyUI prints bare messages, without the logger's name."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = whole(f"{LOG_PREFIX} {record.getMessage()}"), ()
        return True


# Two copies of this pack share the logger, but not the class: a filter of this name is enough.
if not any(getattr(known, "name", "") == LOG_PREFIX for known in log.filters):
    log.addFilter(_Prefix(LOG_PREFIX))
