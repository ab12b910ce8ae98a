"""What the spec asks to run: its recipe, and the name of the revision.

The recipe carries the content of the ConfigMap keys that `pod.env` and `engine.env` refer to, as plain values. An edit
of a ConfigMap is then a new revision that walks its steps like any other (mcp-lifecycle-operator #139, helm #2610), a
worker that restarts never reads what its revision was not judged with, and a rollback brings the old content back.
Secrets are not read: their references stay references.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tandem_operator.api.pod import EnvVar
from tandem_operator.api.recipe import Recipe
from tandem_operator.api.spec import OnInvalid
from tandem_operator.plan.observed import Context, History
from tandem_operator.plan.revisions import canonical, short_hash, without_speculation
from tandem_operator.plan.revisions import recipe as make_recipe
from tandem_operator.plan.validation import Checked

LONGEST_VALUE = 8192  # of EnvVar.value


@dataclass(frozen=True)
class Wanted:
    """`revision` is empty while nothing may be rolled out; `problem` then says why, unless validation does."""

    revision: str = ""
    recipe: Recipe | None = None
    collisions: int = 0
    problem: str = ""


def wanted(context: Context, checked: Checked) -> Wanted:
    resource = context.observed.resource
    spec, collisions = resource.spec, resource.status.collision_count
    target_only = checked.refused and spec.validation.on_invalid == OnInvalid.SERVE_TARGET_ONLY
    if not checked.allowed and not target_only:
        return Wanted(collisions=collisions)
    try:
        pod = spec.pod.model_copy(update={"env": _with_content(context, "pod", spec.pod.env)})
        engine = spec.engine.model_copy(update={"env": _with_content(context, "engine", spec.engine.env)})
    except UnusableConfig as error:
        return Wanted(collisions=collisions, problem=str(error))
    spec = spec.model_copy(update={"pod": pod, "engine": engine})
    prints = checked.validation.fingerprints if checked.validation else None
    if target_only:
        recipe = make_recipe(without_speculation(spec), resource.metadata.name, None)
    else:
        weight_bytes = checked.validation.weight_bytes if checked.validation else None
        recipe = make_recipe(spec, resource.metadata.name, prints, weight_bytes)
    revision, recipe, collided = _named(recipe, context.observed.history, collisions)
    if target_only and resource.status.stable_revision not in ("", revision):
        return Wanted(collisions=collisions)  # something better serves already
    return Wanted(revision, recipe, collided)


class UnusableConfig(Exception):
    """A sentence about what is missing."""


def _with_content(context: Context, part: str, variables: Iterable[EnvVar]) -> list[EnvVar]:
    """`variables` with the content of ConfigMaps in place of references. Raises UnusableConfig."""
    env = []
    for variable in variables:
        reference = variable.value_from.config_map_key_ref if variable.value_from else None
        if reference is None:
            env.append(variable)
            continue
        value = context.observed.config_value(reference.name, reference.key)
        where = f"spec.{part}.env {variable.name}: key {reference.key} of ConfigMap {reference.name}"
        if value is None:
            raise UnusableConfig(f"{where} does not exist; create it, or take the variable out")
        # The kubelet expands $(NAME) in a plain value, and did not in what came from a ConfigMap; $$ stands for $.
        literal = value.replace("$", "$$")
        if len(literal) > LONGEST_VALUE:
            raise UnusableConfig(f"{where} is longer than {LONGEST_VALUE} characters")
        env.append(EnvVar(name=variable.name, value=literal))
    return env


def _named(recipe: Recipe, history: Iterable[History], collisions: int) -> tuple[str, Recipe, int]:
    """The name under which the very recipe is known, and what is recorded there, else its hash. A hash that another
    recipe has is hashed with a count, as Deployments do it."""
    recipes = {h.revision: h.recipe for h in history}
    asked = recipe.identity
    for revision, known in reversed(recipes.items()):
        if canonical(known.identity) == canonical(asked):
            return revision, known, collisions
    name = short_hash(asked, collisions) if collisions else short_hash(asked)
    while name in recipes:
        collisions += 1
        name = short_hash(asked, collisions)
    return name, recipe, collisions
