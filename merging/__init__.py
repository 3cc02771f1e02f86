"""From a stack and a recipe to patches: plan, execute, prove."""
