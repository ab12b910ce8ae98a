"""One pass, from what is observed to what is to be done.

    validation   is the pair proven? until then the spec's revision is not wanted
    revision     the hash of what the spec asks to run, with the fingerprints of the validated files
    retry        asked for? then evidence begins anew
    guard        has the revision that serves collapsed? then it is quarantined
    commands     what a person asked for by hand
    goal         which revision should serve: the wanted one, or, if that is quarantined, an earlier one
    advance      move one canary a step towards being stable, or take it back
    evidence     what is kept of it; of what is quarantined by now, nothing
    counts       replicas of every revision, within surge and unavailability
    speculation  what each ready worker should do; commands for those that do otherwise
    status       conditions, figures, events

From any state, left by a crash, a hand or an edit in mid-rollout, repeated passes lead to the same end.
"""

from __future__ import annotations

from tandem_operator.api import Status
from tandem_operator.api.recipe import Recipe
from tandem_operator.api.rollout import OnCollapse
from tandem_operator.api.status import Command, Outcome
from tandem_operator.plan import children, commands, fleet, guard, rollout, summary, traffic, validation, windows
from tandem_operator.plan.analysis.figures import acceptance
from tandem_operator.plan.clock import with_right_times
from tandem_operator.plan.conditions import Seen, kstatus, merge
from tandem_operator.plan.decision import Notes, Plan
from tandem_operator.plan.observed import Context
from tandem_operator.plan.quarantine import blocked, quarantine, quarantined_before_retry
from tandem_operator.plan.recovery import with_stable
from tandem_operator.plan.wanted import wanted as what_is_wanted

CONFIG_AGAIN_SECONDS = 10.0
READ_BY_NAME_SECONDS = 30.0
"""ConfigMaps and routes that an object names are read in each pass and not watched: the right to watch a ConfigMap
whose name is not known beforehand is the right to read all of them. So this is how long an edit may go unseen."""


def plan(context: Context) -> Plan:
    if context.observed.resource.metadata.deletion_timestamp:
        return Plan(status=context.observed.resource.status)  # owner references clean up
    context, notes = with_stable(with_right_times(context)), Notes()
    checked = validation.check(context)
    notes.seen.append(checked.condition)
    for finding in checked.errors:
        notes.say("Warning", finding.reason, " ".join(filter(None, (finding.message, finding.action))))
    status = context.observed.resource.status.model_copy(update={"validation": checked.validation})
    notes.apply.append(children.worker_account(context.observed.resource))  # first: the others' pods run as it
    if checked.job:
        notes.apply.append(checked.job)
    if checked.wake_after_seconds is not None:
        notes.wakes.append(checked.wake_after_seconds)
    spec = context.observed.resource.spec
    if spec.config_references or spec.traffic.http_route:
        notes.wakes.append(READ_BY_NAME_SECONDS)
    asked = what_is_wanted(context, checked)
    wanted, recipe = asked.revision, asked.recipe
    status = status.model_copy(update={"collision_count": asked.collisions})
    if asked.problem:
        notes.seen.append(Seen("Progressing", "False", "ConfigMissing", asked.problem))
        notes.wakes.append(CONFIG_AGAIN_SECONDS)
    if commands.unanswered(context, status, Command.RETRY):
        status = windows.all_begun_anew(context, status)
    status = _guard_stable(context, status, notes)
    status = commands.carry_out(context, status, wanted, notes)
    target = rollout.goal(context, status, wanted)
    status = rollout.advance(context, status, target, wanted, notes)
    status = windows.kept(context, status)
    recipes = {h.revision: _with_image(h.recipe, context) for h in context.observed.history}
    recipes |= {wanted: _with_image(recipe, context)} if recipe else {}
    counts = fleet.counts(context, status)
    fleet.note_children(context, status, recipes, counts, notes)
    fleet.note_commands(context, status, notes)
    guard.note_metrics(context, status, notes)
    notes.calibrate += guard.unproven(context, status.stable_revision, status.canary_revision)
    status = _summed_up(context, status, wanted, checked, counts, notes)
    return notes.planned(status)


def _with_image(recipe: Recipe, context: Context) -> Recipe:
    """A new revision runs the operator's own worker image; so does one whose record was made before they kept it."""
    return recipe if recipe.worker_image else recipe.model_copy(update={"worker_image": context.settings.worker_image})


def _guard_stable(context: Context, status: Status, notes: Notes) -> Status:
    """Steady state: judge the revision that serves, and quarantine it when it collapsed."""
    stable = status.stable_revision
    if not stable or not context.observed.speculates(stable):
        return status
    notes.wakes.append(context.observed.resource.spec.rollout.analysis.interval_seconds)
    if blocked(context, status, stable):  # switched off; when it is let on again, judge what comes then
        return guard.sample_only(context, status, stable)
    if refused := guard.refused_at_start(context, status, stable):
        if refused.before_retry:
            return quarantined_before_retry(context, status, stable, refused.reason, refused.message)
        return quarantine(context, status, stable, refused.reason, refused.message, notes)
    status, window, verdict = guard.look_at_stable(context, status, stable)
    if verdict is None:
        return status
    if window.counts.drafts >= context.observed.resource.spec.rollout.analysis.minimum_drafts:
        shown = acceptance(window, guard.speed_of(context, window))
        status = status.model_copy(update={"acceptance": shown})
    if verdict.outcome == Outcome.HEALTHY:
        return windows.next_window(context, status, window)
    if not verdict.outcome.bad:
        return status
    limits = context.observed.resource.spec.guard
    if limits.dry_run or limits.on_collapse == OnCollapse.ALERT:
        why = "guard.dryRun is on" if limits.dry_run else "guard.onCollapse is Alert"
        notes.say("Warning", verdict.outcome, f"Revision {stable}: {verdict.message}; {why}")
        return windows.judged_anew(context, status, stable)
    return quarantine(context, status, stable, verdict.reason, verdict.message, notes)


def _summed_up(
    context: Context,
    status: Status,
    wanted: str,
    checked: validation.Checked,
    counts: dict[str, int],
    notes: Notes,
) -> Status:
    resource = context.observed.resource
    seen: list[Seen] = [
        summary.progressing(context, status, wanted, checked),
        summary.ready(context, status, checked),
        summary.speculation_active(context, status, checked),
        traffic.condition(context, status),
        summary.rolled_back(context, status, wanted),
        *notes.seen,  # what was noted on the way is more telling, so it comes last and wins
    ]
    said = {each.type: each for each in seen}
    seen += kstatus(said["Progressing"], said["Ready"])
    generation = resource.metadata.generation
    shown = status.acceptance if status.acceptance and status.acceptance.revision == status.stable_revision else None
    status = status.model_copy(
        update={
            "observed_generation": generation,
            "replicas": sum(counts.values()),
            "share": traffic.canary_share(context, status),
            "selector": summary.selector(resource.metadata.name),
            "url": f"http://{resource.metadata.name}.{resource.metadata.namespace}.svc:{children.SERVICE_PORT}",
            "acceptance": shown,
            "conditions": merge(status.conditions, seen, generation, context.now),
        }
    )
    summary.note_transitions(resource.status, status, notes)
    return status
