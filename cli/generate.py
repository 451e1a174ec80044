"""`rfa generate`: continue a text with a language model, in this process."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rfa.cli.console import print_json
from rfa.cli.options import JsonFlag

if TYPE_CHECKING:
    from rfa.service.engine.text.generated import Generation
    from rfa.service.engine.text.options import GenerateOptions

DEFAULT_BUNDLE = "books"


Prompt = Annotated[str, typer.Argument(help="Text to continue.")]
Bundle = Annotated[str, typer.Option(help="Bundle directory, or name of a default bundle.")]
Decode = Annotated[
    Literal["recurrent", "attention"] | None,
    typer.Option(
        help=(
            "Mode of the model: `recurrent` uses memory slots of constant size; `attention` uses a cache that grows "
            "with the text. The default is `recurrent` if the bundle supports it."
        )
    ),
]
Passes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=(
            "Number of reweighting passes per token in recurrent mode. The default is the maximum that the model "
            "supports."
        ),
    ),
]
MaxNewTokens = Annotated[int, typer.Option(min=1)]
Temperature = Annotated[
    float, typer.Option(min=0, max=100, help="Sampling temperature; 0 always selects the most probable token.")
]
TopK = Annotated[int | None, typer.Option(min=1, help="Sample only from the k most probable tokens.")]
TopP = Annotated[
    float,
    typer.Option(
        min=1e-9, max=1, help="Sample only from the smallest set of tokens whose probabilities sum to at least this."
    ),
]
LatentNoise = Annotated[
    float,
    typer.Option(min=0, max=10, help="Scale of the noise in the latent sample of the last layer; 0 disables sampling."),
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Random seed. By default it is chosen at random; --json prints it.")
]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the generation when it appears. Repeatable.")]


async def _run(path: Any, options: GenerateOptions, show: bool) -> Generation:
    """Generate a text with the engine of the server. With the same seed, /generate returns the same text."""
    from rfa.service.engine.engine import Engine
    from rfa.service.engine.models import load_models
    from rfa.service.engine.text.generated import Generation
    from rfa.service.metrics import Metrics
    from rfa.service.settings import Settings

    settings = Settings(bundles=(path,), workers=1)
    engine = Engine(load_models(settings), settings, Metrics())
    try:
        job = engine.generate(None, options)
        if show:
            typer.echo(options.prompt, nl=False)
        async for event in job.events():
            last = event.last if isinstance(event, Generation) else event
            if show and last is not None:
                typer.echo(last.token.text, nl=False)
            if isinstance(event, Generation):
                return event
    finally:
        engine.close()
    raise RuntimeError("the generation ended without a result")


def generate(
    prompt: Prompt,
    *,
    bundle: Bundle = DEFAULT_BUNDLE,
    decode: Decode = None,
    passes: Passes = None,
    max_new_tokens: MaxNewTokens = 100,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = 0.95,
    latent_noise: LatentNoise = 0.0,
    seed: Seed = None,
    stop: Stop = None,
    as_json: JsonFlag = False,
) -> None:
    """Continue a text, and print it as it is generated."""
    import asyncio

    from rfa.cli.bundles import find_bundle
    from rfa.service.engine.seeds import draw_seed
    from rfa.service.engine.text.options import FieldNames, GenerateOptions

    options = GenerateOptions(
        prompt=prompt,
        max_new_tokens=max_new_tokens,
        seed=draw_seed() if seed is None else seed,
        temperature=temperature or 1.0,
        top_k=top_k,
        top_p=top_p,
        is_sampled=temperature > 0,
        stops=tuple(stop or ()),
        mode=decode,
        passes=passes,
        latent_noise=latent_noise,
        is_streamed=True,
        names=FieldNames("PROMPT", "--max-new-tokens", "", "--decode", "--max-new-tokens", "--"),
    )
    generation = asyncio.run(_run(find_bundle(bundle), options, show=not as_json))
    if not as_json:
        typer.echo()
        return
    continuation = generation.texts[0]
    document = {
        "generated_text": continuation.text,
        "finish_reason": continuation.finish_reason,
        "seed": options.seed,
        "tokens": [asdict(event.token) for event in continuation.events],
        "timings": asdict(generation.timings),
    }
    print_json(document)
