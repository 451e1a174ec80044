"""POST /state/merge, which merges the states of streams that observe the same system."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from rfa.runtime.uncertainty.interface import MergeOptions
from rfa.service.access.quotas import client_of
from rfa.service.access.request_log import record_of
from rfa.service.body import StrictJSONRoute
from rfa.service.disconnect import unless_disconnected
from rfa.service.engine.choices import ModelChoice
from rfa.service.engine.engine import Engine
from rfa.service.engine.filter.merging import MergedState
from rfa.service.errors import InvalidRequest
from rfa.service.memory import lease_of
from rfa.service.routes.common import EngineDep, document_response, encode_document
from rfa.service.routes.generate import MODEL_ERRORS
from rfa.service.routes.state import StateExchange, errors_name, open_exchange
from rfa.service.schemas.filter_replies import MergeReply
from rfa.service.schemas.merge_requests import MergeRequest

router = APIRouter(route_class=StrictJSONRoute)


@router.post(
    "/state/merge",
    response_model=MergeReply,
    responses={200: {"model": MergeReply, "description": "The merged state."}, **MODEL_ERRORS},
    tags=["filter"],
)
async def merge_states(body: MergeRequest, request: Request, engine: EngineDep) -> Response:
    """Merge the states of several streams of a filter that observe the same system.

    The states in the request do not change. Only the estimates are merged. Everything else that a stream has learned,
    such as the widths of its intervals, is copied from the first state.
    """
    choice = engine.merge_model(await engine.resolve_filter(body.model, body.system))
    engine.filter_model(choice).check_merges()
    client = client_of(request)
    client.afford("observations", len(body.states))
    kind = partial(engine.filter_state, choice)
    named = {f"states[{i}]": reference for i, reference in enumerate(body.states)}
    if body.prior is not None:
        named["prior"] = body.prior
    exchange = await open_exchange(request, kind, state=None, return_state=body.return_state, others=named)
    job = engine.merge(choice, _options(body, choice, engine, exchange), lease_of(request))
    # Predicting a state to the common time takes as long as filtering an observation.
    client.spend("observations", len(body.states))
    model = engine.filter_model(choice).name
    record_of(request).filtered(model, len(body.states))
    merged: MergedState = await unless_disconnected(request, job.result())
    state = None if merged.state is None else await exchange.save(merged.state.payload, merged.state.count)
    reply = _reply(model, body, merged, state)
    return await document_response(request, encode_document(reply))


def _options(body: MergeRequest, model: ModelChoice, engine: Engine, exchange: StateExchange) -> MergeOptions:
    found = {}
    for name, opened in exchange.others.items():
        with errors_name(name):
            found[name] = engine.read_filter_state(model, opened.payload)
    payloads = [exchange.others[f"states[{i}]"].payload for i in range(len(body.states))]
    for i, payload in enumerate(payloads):
        if body.method == "precision" and payload in payloads[:i]:
            name = f"states[{i}]"
            message = (
                f'{name} is identical to an earlier state; list each state once, because the method "precision" would '
                "count its information twice."
            )
            raise InvalidRequest(message, param=name, code="duplicate")
    return MergeOptions(
        states=tuple(found[f"states[{i}]"] for i in range(len(body.states))),
        method=body.method,
        levels=tuple(body.levels or ()),
        horizon=tuple(body.horizon),
        prior=found.get("prior"),
        t=body.t,
        wants_state=exchange.is_requested,
    )


def _reply(model: str, body: MergeRequest, merged: MergedState, state: str | None) -> MergeReply:
    shared = ("index", "t", "mean", "std", "precision", "confidence", "interval", "forecast")
    return MergeReply(
        model=model,
        method=body.method,
        weights=merged.weights,
        seed=merged.seed,
        timings=merged.timings,
        state=state,
        **{name: getattr(merged.step, name) for name in shared},
    )
