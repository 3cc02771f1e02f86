"""KnOTS-TIES: TIES in a basis that the LoRAs share (Stoica et al., arXiv:2410.19735).

The deltas are brought into one basis by an SVD of all of them side by side; TIES trims, elects and averages their
coordinates there, and the basis brings the result back. The result has the rank of the basis.
"""

from .ties import SPARSIFIER, degree, merge, partial

SHARES_BASIS = True

__all__ = ["SHARES_BASIS", "SPARSIFIER", "degree", "merge", "partial"]
