"""Whether a LoRA was cut out of a whole fine-tuned model: then its factors are singular vectors.

Training never makes the columns of an up orthogonal to each other and the rows of its down too; a singular value
decomposition always does. Distillations are often made so from a distilled checkpoint.
"""

from itertools import islice

import torch
from torch import Tensor

from ..core.threads import one_thread
from ..lora.factors import LowRank
from ..lora.file import LoraFile

SAMPLED = 8
LEAST_RANK = 4
ORTHOGONAL = 0.02  # the largest cosine that half precision leaves between singular vectors, with room


def extracted(file: LoraFile) -> str:
    """What its factors say for a decomposition, in words; empty if they do not.

    A few linear modules are read, spread over the file; all of them must be orthogonal.

    Raises:
        FileError: the tensors cannot be read.
    """
    fitting = [
        module
        for module in file.modules.values()
        if module.format == "lora" and module.rank >= LEAST_RANK and not module.base_reason
    ]
    step = max(1, len(fitting) // SAMPLED)
    count = 0
    with torch.no_grad(), one_thread():
        for module in islice(fitting, 0, None, step):
            delta = file.load(module)
            if (
                not isinstance(delta, LowRank)
                or delta.rank > min(delta.up.shape[0], delta.down.shape[1]) // 2
            ):
                continue
            if max(_largest_cosine(delta.up.float().T), _largest_cosine(delta.down.float())) > ORTHOGONAL:
                return ""
            count += 1
    if not count:
        return ""
    return f"its factors are singular vectors ({count} modules looked at): it was cut out of a whole fine-tuned model"


def _largest_cosine(rows: Tensor) -> float:
    """Between two rows of `(r, n)`; 1 where fewer than two are not zero."""
    sizes = rows.norm(dim=1)
    rows = rows[sizes > sizes.max() * 1e-4] if bool(sizes.max() > 0) else rows[:0]
    if len(rows) < LEAST_RANK:
        return 1.0
    rows = rows / rows.norm(dim=1, keepdim=True)
    return float((rows @ rows.T).fill_diagonal_(0).abs().max())
