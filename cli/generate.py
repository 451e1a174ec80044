"""`rfa generate`: text from a language bundle, in this process, token by token."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rfa.cli.console import JsonFlag, print_json

if TYPE_CHECKING:
    from rfa.service.engine.text.generated import Generation
    from rfa.service.engine.text.options import GenerateOptions

DEFAULT_BUNDLE = "books"


async def _run(path: Any, options: GenerateOptions, show: bool) -> Generation:
    """Generate on the server's own engine, so that a seed gives the text that /generate gives."""
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
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    bundle: Annotated[str, typer.Option(help="Bundle folder, or the name of a default bundle.")] = DEFAULT_BUNDLE,
    decode: Annotated[
        Literal["recurrent", "attention"] | None,
        typer.Option(
            help="Constant-memory filter slots, or exact attention over a growing cache; default: the slots, where the "
            "bundle has them."
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 100,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="0 takes the most probable token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Keep the k most probable tokens.")] = None,
    top_p: Annotated[float, typer.Option(min=1e-9, max=1, help="Keep the smallest set with this probability.")] = 0.95,
    latent_noise: Annotated[float, typer.Option(min=0, max=10, help="Scale of the last layer's latent sample.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Default: drawn, and told with --json.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; repeat for more.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Continue a text, streamed to the terminal."""
    import asyncio

    from rfa.cli.bundles import find_bundle
    from rfa.service.engine.engine import draw_seed
    from rfa.service.engine.text.options import GenerateOptions

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
        latent_noise=latent_noise,
        is_streamed=True,
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
