"""A hollow node: one process that answers for any number of pods, for tests of the operator and of its scale.

It registers a Node, says that every pod bound to it runs, ends validation Jobs with a report, and serves `/status`,
`/metrics` and `/admin/speculation` of every worker at that pod's own loopback address. No process is started for a pod.
"""
