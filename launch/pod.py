"""In a pod: makes one host of a run of it (see launch/engines/kubernetes.py)."""
