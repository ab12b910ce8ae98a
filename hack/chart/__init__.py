"""What is made from the chart: its README, and the manifests of deploy/ for those without helm."""
