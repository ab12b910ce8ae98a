"""The validation Job: what `tandem-worker validate` is told of a pair and of the engine that will run it."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from tandem_operator import names
from tandem_operator.api import SpeculativeDeployment
from tandem_operator.api.spec import Drafter, Probe, Spec
from tandem_operator.engines import Launch, adapter_of
from tandem_operator.engines.adapter import TERMINATION_LOG, UNPRIVILEGED
from tandem_operator.engines.builtin import tensor_parallel
from tandem_operator.plan.children import metadata
from tandem_operator.plan.observed import Manifest, Settings
from tandem_operator.plan.pods import dump, folder_of, make_container, make_pod
from tandem_operator.plan.revisions import recipe as make_recipe

JOB_KEPT_SECONDS = 3600
PROMPTS_MOUNT, PROMPTS_FILE = "/etc/tandem/prompts", "prompts.jsonl"
REACHED_MOUNT = "/var/lib/tandem/probe"


def validation_job(resource: SpeculativeDeployment, settings: Settings, key: str, attempt: int) -> Manifest:
    """Runs `tandem-worker validate` once. A verdict (exit 1 and 2) is an answer, not a failure to be tried again."""
    name, spec = resource.metadata.name, resource.spec
    assert spec.drafter is not None, "only a pair is validated"
    sources = {"target": spec.target.source, "drafter": spec.drafter.source}
    container = {
        **make_container("validate", settings.worker_image, _arguments(name, spec, spec.drafter), sources),
        "resources": dump(spec.resources) if spec.validation.mode == "Probe" else {},
    }
    pod = make_pod(name, spec.pod, [container], sources)
    if spec.validation.probe:
        _give_prompts(spec.validation.probe, container, pod)
        _keep_reached(spec.validation.probe, name, container, pod)
    labels = {
        names.ROLE: names.VALIDATION,
        names.VALIDATION_KEY: key,
        names.ATTEMPT: str(attempt),
    }
    verdicts = {"containerName": "validate", "operator": "In", "values": [1, 2]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(resource, names.validation_job(name, key, attempt), labels),
        "spec": {
            "backoffLimit": 3,
            "ttlSecondsAfterFinished": JOB_KEPT_SECONDS,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": verdicts},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": {
                "metadata": {"labels": {**spec.pod.labels, **names.common_labels(name), **labels}},
                "spec": {**pod, "restartPolicy": "Never"},
            },
        },
    }


def _arguments(name: str, spec: Spec, drafter: Drafter) -> list[str]:
    target_folder, drafter_folder = folder_of(spec.target.source, "target"), folder_of(drafter.source, "drafter")
    arguments = [
        "validate",
        f"--target={target_folder}",
        f"--drafter={drafter_folder}",
        f"--mode={spec.validation.mode}",
        f"--draft-length={spec.speculation.fixed_draft_length}",
        f"--min-accept-length={probe_floor(spec):g}",
        f"--termination-message={TERMINATION_LOG}",
        *_engine_arguments(spec, Launch(make_recipe(spec, name, None), "", target_folder, drafter_folder)),
    ]
    if drafter.trained_on:
        arguments.append("--trained-on=" + ",".join(map(str, drafter.trained_on.capture_indexes)))
    return arguments


def probe_floor(spec: Spec) -> float:
    """The accept length that the probe asks for."""
    probe = spec.validation.probe
    return spec.guard.min_accept_length if probe is None or probe.min_accept_length is None else probe.min_accept_length


def _give_prompts(probe: Probe, container: Manifest, pod: Manifest) -> None:
    if probe.continuation_tokens:
        container["args"].append(f"--continuation={probe.continuation_tokens}")
    if probe.prompts:
        items = [{"key": probe.prompts.key, "path": PROMPTS_FILE}]
        pod["volumes"].append({"name": "prompts", "configMap": {"name": probe.prompts.name, "items": items}})
        container["volumeMounts"].append({"name": "prompts", "mountPath": PROMPTS_MOUNT, "readOnly": True})
        container["args"].append(f"--prompts={PROMPTS_MOUNT}/{PROMPTS_FILE}")


def _keep_reached(probe: Probe, name: str, container: Manifest, pod: Manifest) -> None:
    """In a claim: a pod that is evicted takes its emptyDirs with it, and no container of a Job that tells verdicts from
    failures by exit code (podFailurePolicy) may be restarted within its pod.
    """
    if probe.resume is None:
        return
    volume = _writable_volume(probe.resume.claim_name, pod)
    pod["securityContext"] |= {"fsGroup": UNPRIVILEGED, "fsGroupChangePolicy": "OnRootMismatch"}
    container["volumeMounts"].append({"name": volume, "mountPath": REACHED_MOUNT})
    container["args"].append(f"--resume={PurePosixPath(REACHED_MOUNT, probe.resume.path, name)}")


def _writable_volume(claim: str, pod: Manifest) -> str:
    """Name of the claim's one volume (kubernetes #127004); a checkpoint in it is still mounted read-only."""
    for volume in pod["volumes"]:
        if volume.get("persistentVolumeClaim", {}).get("claimName") == claim:
            volume["persistentVolumeClaim"] = {"claimName": claim}
            return str(volume["name"])
    pod["volumes"].append({"name": "reached", "persistentVolumeClaim": {"claimName": claim}})
    return "reached"


def _engine_arguments(spec: Spec, launch: Launch) -> list[str]:
    """What `validate` is told of the engine: the very arguments that a worker gets, since they can defeat a pair."""
    engine, adapter = spec.engine, adapter_of(spec.engine, spec.speculation)
    told = [f"--context-length={engine.context_length}"] if engine.context_length else []
    arguments, env = [*engine.args, *tensor_parallel(engine)], engine.env
    if not adapter.cooperates:
        told.append(f"--engine={engine.type}@{engine.version}")
        arguments, env = adapter.arguments(launch), [*engine.env, *spec.pod.env]
    if arguments:
        told.append(f"--engine-args={shlex.join(arguments)}")
    return [*told, *(f"--engine-env={each.name}={each.value}" for each in env if each.value is not None)]
