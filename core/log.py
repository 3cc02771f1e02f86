"""The one logger. Inside ComfyUI `__name__` is a file path, so everybody imports this one."""

import logging

log = logging.getLogger("lora_alloy")
