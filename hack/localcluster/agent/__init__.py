"""The node agent: registers a node and runs the pods bound to it as ordinary processes of this machine.

It takes the place of a kubelet, a container runtime and kube-proxy, without their isolation: processes share the
user, the files and the network of whoever started the cluster.
"""
