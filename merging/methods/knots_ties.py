"""KnOTS-TIES: TIES in a basis that all LoRAs share.

`enhance/knots.py` brings the deltas of a target into one basis; TIES trims, elects and averages their coordinates
there, and the basis brings the result back, at the rank of the basis. Two LoRAs that do the same in other directions
meet in those coordinates, where entry by entry they would pass for unrelated.
"""

from .ties import SPARSIFIER, degree, merge, partial, settled_vote

PAPER = "Stoica et al. 2024, arXiv:2410.19735"
SHARES_BASIS = True

__all__ = ["PAPER", "SHARES_BASIS", "SPARSIFIER", "degree", "merge", "partial", "settled_vote"]
