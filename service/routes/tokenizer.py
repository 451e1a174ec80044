"""POST /tokenize, POST /detokenize and GET /tokenizer_info, for clients of vLLM."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from rfa.service.body import StrictJSONRoute
from rfa.service.encoding import Long
from rfa.service.engine.text.prompt import PromptReader
from rfa.service.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    NotReady,
)
from rfa.service.memory import lease_of
from rfa.service.routes.common import (
    BODY_ERRORS,
    EngineDep,
    document_response,
    encode_document,
    error_responses,
    json_response,
)
from rfa.service.routes.token_texts import token_name
from rfa.service.schemas.chat_template import CHAT_TEMPLATE
from rfa.service.schemas.openai import LONGEST_MODEL_NAME
from rfa.service.schemas.tokenizer import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
    TokenizerInfo,
)
from rfa.service.setting_groups import LimitSettings

router = APIRouter(route_class=StrictJSONRoute, tags=["language"])
ERRORS = error_responses(*BODY_ERRORS)
# Memory per byte of text or per token, until the reply is sent.
BYTES_EACH = 32


@router.post("/tokenize", response_model=TokenizeReply, responses=ERRORS)
async def tokenize(body: TokenizeRequest, request: Request, engine: EngineDep) -> Response:
    """Convert a text to tokens, in the same way as a prompt."""
    vocabulary = engine.language(body.model).vocabulary
    size, limits = len(body.prompt.encode()), _limits(request)
    if size > limits.max_reply_numbers:
        message = f"prompt must have at most {limits.max_reply_numbers} bytes on this server, got {size}."
        raise InvalidRequest(message, param="prompt", code="too_large")
    lease_of(request).grow(BYTES_EACH * size)
    reader = PromptReader(vocabulary, body.prompt, size)
    while not reader.is_done:
        reader.read("prompt")
        await request.app.state.cooperative.pause()
    tokens = reader.tokens
    names = Long(tokens, lambda token: token_name(vocabulary, token)) if body.return_token_strs else None
    reply = TokenizeReply(len(tokens), limits.max_prompt_tokens, Long(tokens), names)
    return await document_response(request, encode_document(reply))


@router.post("/detokenize", response_model=DetokenizeReply, responses=ERRORS)
async def detokenize(body: DetokenizeRequest, request: Request, engine: EngineDep) -> Response:
    """Convert tokens to a text."""
    vocabulary = engine.language(body.model).vocabulary
    if max(body.tokens, default=0) >= len(vocabulary):
        message = f"tokens must be token ids below {len(vocabulary)} for this model, got {max(body.tokens)}."
        raise InvalidRequest(message, param="tokens", code="unknown_token")
    lease_of(request).grow(BYTES_EACH * len(body.tokens))
    return json_response(DetokenizeReply(vocabulary.decode(body.tokens)))


@router.get(
    "/tokenizer_info",
    response_model=TokenizerInfo,
    responses=error_responses(NotFound, MethodNotAllowed, InvalidRequest, NotReady),
)
async def tokenizer_info(
    request: Request, engine: EngineDep, model: Annotated[str | None, Query(max_length=LONGEST_MODEL_NAME)] = None
) -> Response:
    """Describe the tokenizer of a language model."""
    language = engine.language(model)
    vocabulary = language.vocabulary
    end = vocabulary.end_of_text
    name = None if end is None else vocabulary.label(end)
    return json_response(
        TokenizerInfo(
            "PreTrainedTokenizerFast", language.name, len(vocabulary), name, name, name, end, False,
            CHAT_TEMPLATE, _limits(request).max_prompt_tokens,
        )
    )  # fmt: skip


def _limits(request: Request) -> LimitSettings:
    limits: LimitSettings = request.app.state.settings.limits
    return limits
