"""A status can be lost: a backup is restored without it, an object is deleted with `--cascade=orphan` and made anew.

Then the newest record that once was stable, if its workers are still there, is what serves. Taken for no more than a
first install, the spec's revision would skip its steps, and meanwhile nobody would judge the workers that serve.
"""

from __future__ import annotations

from dataclasses import replace

from tandem_operator.plan.observed import Context, Observed


def with_stable(context: Context) -> Context:
    status = context.observed.resource.status
    if status.stable_revision or status.canary_revision or not (found := last_served(context.observed)):
        return context
    resource = context.observed.resource.model_copy(
        update={"status": status.model_copy(update={"stable_revision": found})}
    )
    return replace(context, observed=replace(context.observed, resource=resource))


def last_served(observed: Observed) -> str:
    """Empty: none, or its workers are gone. A revision that becomes stable again gets the newest number."""
    served = [record.revision for record in observed.history if record.served]
    return served[-1] if served and observed.deployment(served[-1]).desired else ""
