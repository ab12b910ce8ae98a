-- Argo CD's health of a SpeculativeDeployment. It knows no kstatus, so what Flux reads from the conditions it is told
-- here. Goes into the ConfigMap argocd-cm, under resource.customizations.health.tandem.dev_SpeculativeDeployment.
local health = {status = "Progressing", message = "not seen by the operator yet"}
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then return health end
local is = {}
for _, condition in ipairs(obj.status.conditions or {}) do is[condition.type] = condition end
local function says(kind) return is[kind] ~= nil and is[kind].status == "True" end
if says("Stalled") then return {status = "Degraded", message = is.Stalled.message} end
if says("Reconciling") then
  local waits = is.Reconciling.reason == "Paused"
  return {status = waits and "Suspended" or "Progressing", message = is.Reconciling.message}
end
if says("Ready") then return {status = "Healthy", message = is.Ready.message} end
return health
