"""Who gets which part of the requests.

Without a route that is a matter of replicas: requests go to any ready worker behind the one Service. With
`traffic.httpRoute` the weights of that HTTPRoute of the Gateway API say it, between two Services, one a revision:

    at rest, and at weight 100       NAME                            as the user wrote it
    a canary that is starting        NAME-stable 100, NAME-canary 0  nothing goes where nobody answers yet
    a canary whose step is in force  NAME-stable 90, NAME-canary 10

While workers for a higher weight are still coming, the canary gets no more than its share of ready workers. Only
backends that are Services of the object are touched, in rules that have no others: there a weight means what it says.
"""

from __future__ import annotations

import re

from tandem_operator import names
from tandem_operator.api import Status
from tandem_operator.api.route import GATEWAY, GATEWAY_VERSION, BackendRef, RouteRule
from tandem_operator.plan.children import SERVICE_PORT
from tandem_operator.plan.conditions import Seen
from tandem_operator.plan.observed import Context, Manifest
from tandem_operator.plan.scale import share


def split(context: Context, status: Status) -> bool:
    """A route sends requests to two Services."""
    routed = context.observed.resource.spec.traffic.http_route is not None
    return bool(routed and status.stable_revision and status.canary_revision and status.weight < 100)


def canary_share(context: Context, status: Status) -> int:
    """Of the requests, in percent."""
    ready = [pod.revision for pod in context.observed.pods if pod.ready and not pod.terminating]
    canary = ready.count(status.canary_revision) if status.canary_revision else 0
    of_workers = share(len(ready) - canary, canary)
    if not split(context, status):
        return of_workers
    progress = status.progress
    in_force = progress is not None and progress.in_force_at is not None and progress.waiting_since is None
    return status.weight if in_force and canary else min(status.weight, of_workers)


def problem(context: Context) -> str:
    """Why the route that the spec names can't be used; empty when all is well or none is named."""
    named = context.observed.resource.spec.traffic.http_route
    if named is None:
        return ""
    route, name = context.observed.route, context.observed.resource.metadata.name
    if route is None:
        return f"HTTPRoute {named.name} does not exist in this namespace; create it, or take out spec.traffic.httpRoute"
    ours = [rule for rule in route.spec.rules if any(_is_ours(name, ref) for ref in rule.backend_refs)]
    if not ours:
        return f"no rule of HTTPRoute {named.name} sends requests to Service {name}; add it as a backendRef"
    others = [ref.name for rule in ours for ref in rule.backend_refs if not _is_ours(name, ref)]
    if others:
        return (
            f"HTTPRoute {named.name} sends requests of one rule to Service {name} and to {', '.join(others)}: "
            "give the others a rule of their own, so that weights mean what they say"
        )
    return ""


def manifest(context: Context, status: Status) -> Manifest | None:
    """The route with the weights of now; None: there is nothing to change."""
    route = context.observed.route
    if route is None or problem(context):
        return None
    backends = _backends(context, status)
    rules = [_weighed(context.observed.resource.metadata.name, rule, backends) for rule in route.spec.rules]
    if rules == route.spec.rules:
        return None
    return {
        "apiVersion": f"{GATEWAY}/{GATEWAY_VERSION}",
        "kind": "HTTPRoute",
        "metadata": {
            "name": route.metadata.name,
            "namespace": context.observed.resource.metadata.namespace,
            "resourceVersion": route.metadata.resource_version,
        },
        "spec": {"rules": [rule.model_dump(mode="json", by_alias=True, exclude_unset=True) for rule in rules]},
    }


def condition(context: Context, status: Status) -> Seen:
    if context.observed.resource.spec.traffic.http_route is None:
        return Seen("TrafficRouted", "True", "ReplicaShares", "")
    if trouble := problem(context):
        return Seen("TrafficRouted", "False", "RouteUnusable", trouble)
    listed = ", ".join(f"{name} {weight}" for name, weight in _backends(context, status).items())
    return Seen("TrafficRouted", "True", "RouteWeights", f"requests go to {listed}")


def _backends(context: Context, status: Status) -> dict[str, int]:
    """Weights by Service."""
    name = context.observed.resource.metadata.name
    if not split(context, status):
        return {name: 1}
    canary = canary_share(context, status)
    return {names.child(name, status.stable_revision): 100 - canary, names.child(name, status.canary_revision): canary}


def _is_ours(name: str, ref: BackendRef) -> bool:
    service = ref.kind == "Service" and ref.group == "" and ref.namespace is None
    return service and re.fullmatch(rf"{re.escape(name)}(-[0-9a-f]{{10}})?", ref.name) is not None


def _weighed(name: str, rule: RouteRule, backends: dict[str, int]) -> RouteRule:
    """Filters and the like of the first backend are kept."""
    ours = [ref for ref in rule.backend_refs if _is_ours(name, ref)]
    if not ours or {ref.name: ref.weight for ref in ours} == backends:
        return rule
    if len(backends) == 1 and [ref.name for ref in ours] == list(backends):
        return rule  # one backend gets all, whatever weight the user gave it
    like = ours[0] if ours[0].port else ours[0].model_copy(update={"port": SERVICE_PORT})
    refs = [like.model_copy(update={"name": service, "weight": weight}) for service, weight in backends.items()]
    return rule.model_copy(update={"backend_refs": refs})
