"""What is looked at in every candidate that is merged, while its patches are there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..analysis.similarity import Measured
from ..core.errors import RecipeError
from ..core.params import unknown
from ..lora.stack import Stack
from ..merging.density import architecture_of
from ..merging.holding import held_out
from ..merging.patch import Patch
from ..merging.plan import Plan
from ..merging.recipe import AUTO
from ..merging.retention import retention
from .legacy_scores import FORMULAS, SPECTRA, Metrics, expected_norm, legacy_score, metrics
from .summary import Summary, summary


@dataclass(frozen=True)
class Seen:
    """What was seen of a merge.

    Attributes:
        summary: of the stack; the same for all candidates.
        retention: how much is left of every entry of the stack, in its order.
        metrics: what the legacy scores look at; None where nothing was merged, because the plan tells its effect.
        legacy: the legacy scores, by formula; empty alike.
    """

    summary: Summary
    retention: tuple[float, ...]
    metrics: Metrics | None
    legacy: Mapping[str, float]


class Look:
    """Looks at the candidates of one sweep, as `tuned(look=…)` asks it to.

    Attributes:
        wants_patches: whether candidates are to be merged for it, whose effect is known without.

    Args:
        spectra: which effective ranks the legacy scores look at, one of `legacy_scores.SPECTRA`.
        is_legacy: whether the legacy scores are wanted of every candidate.

    Raises:
        RecipeError: there is no such word.
    """

    def __init__(self, spectra: str = "disabled", *, is_legacy: bool = False) -> None:
        if spectra not in SPECTRA:
            raise RecipeError(unknown("kind of spectra", f"{spectra!s:.60}", dict.fromkeys(SPECTRA)))
        self.wants_patches = is_legacy or spectra != "disabled"
        self._spectra = spectra
        self._last: tuple[Stack, Summary] | None = None

    def __call__(
        self, stack: Stack, measured: Sequence[Measured], plan: Plan, patches: Sequence[Patch]
    ) -> Seen:
        """See a merge.

        Args:
            stack: what was tuned.
            measured: of its groups.
            plan: of the merge.
            patches: that it made; empty where the plan tells its effect, and nothing was merged.

        Raises:
            FileError: a file cannot be read.
        """
        recipe = plan.recipe
        if self._last is None or self._last[0] is not stack:
            self._last = stack, summary(stack, measured, recipe.smoothing)
        told = self._last[1]
        left = tuple(one.overall for one in retention(stack, plan, measured, patches))
        if not patches:
            return Seen(told, left, None, {})
        held = held_out(stack, recipe)
        # Of whole results, none was ever looked at where the LoRAs have nothing in common.
        spectra = self._spectra
        if told.is_orthogonal:
            spectra = {"merge_quality": "disabled", "full": "lora_rank"}.get(spectra, spectra)
        expected = expected_norm(held, measured, is_orthogonal=told.is_orthogonal)
        found = metrics(patches, expected, spectra)
        family = architecture_of(stack.family)
        architecture = family if recipe.architecture == AUTO else recipe.architecture
        return Seen(
            told,
            left,
            found,
            {formula: legacy_score(formula, found, recipe, architecture) for formula in FORMULAS},
        )
