"""Write API-format prompts as calls.

    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family="sdxl", seed=1)
    lora = flow.add("LoraLoaderModelOnly", model=tiny[0], lora_name="ink.safetensors", strength_model=0.7)
    flow.sample("ink", model=lora[0], clip=tiny[1])

`server.run(flow.prompt)` runs it, and `server.latent("ink")` is what was sampled.
"""

from dataclasses import dataclass

__all__ = ["Node", "Workflow"]


@dataclass(frozen=True)
class Node:
    """A node of a workflow; `node[1]` is what an input links to for its second output."""

    id: str

    def __getitem__(self, output: int) -> list[str | int]:
        return [self.id, output]


class Workflow:
    """A prompt under construction."""

    def __init__(self) -> None:
        self.prompt: dict[str, dict[str, object]] = {}

    def add(self, node_type: str, **inputs: object) -> Node:
        """Add a node; an input is a literal, or `other_node[i]`."""
        node = Node(str(len(self.prompt) + 1))
        self.prompt[node.id] = {"class_type": node_type, "inputs": inputs}
        return node

    def sample(
        self,
        name: str,
        *,
        model: list[str | int],
        clip: list[str | int],
        steps: int = 2,
        cfg: float = 3.0,
        side: int = 64,
        seed: int = 7,
    ) -> Node:
        """Encode a text, sample a square of `side` pixels in Euler `steps`, write the latent as `name`."""
        positive = self.add("CLIPTextEncode", clip=clip, text="a copper kettle, (etching:1.2)")
        negative = self.add("CLIPTextEncode", clip=clip, text="blurred")
        sampled = self.add(
            "KSampler",
            model=model,
            positive=positive[0],
            negative=negative[0],
            latent_image=self.add("EmptyLatentImage", width=side, height=side, batch_size=1)[0],
            seed=seed,
            steps=steps,
            cfg=cfg,
            sampler_name="euler",
            scheduler="normal",
            denoise=1.0,
        )
        return self.add("AlloyTestLatent", samples=sampled[0], name=name)
