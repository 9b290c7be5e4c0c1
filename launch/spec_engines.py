"""What only one engine understands in a job file. Standard library only; see launch.spec."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What only Slurm knows.

    Attributes:
      partition: partition; empty takes the cluster's default.
      qos: quality of service; default: named like the priority.
      constraint: features of nodes.
      reservation: reservation.
      exclude: nodes to avoid from the start.
      segment: hosts of each block segment, where the topology is topology/block.
      setup: lines of shell that run on the first node before the supervisor (module load ...).
    """

    partition: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    exclude: tuple[str, ...] = ()
    segment: int = 0
    setup: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class KubernetesOptions:
    """What only Kubernetes knows.

    Attributes:
      namespace: namespace; default: named like the team.
      queue: LocalQueue; default: named like the team.
      node_selector: labels of nodes.
      accelerator_resource: resource name; default by the kind (nvidia.com/gpu, google.com/tpu).
      rack_label: node label of racks in the cluster's Topology.
      block_label: node label of blocks.
      volume_claim: PersistentVolumeClaim that holds a checkpoint root that is a path.
      volume_path: folder at which pods mount it; default: the first folder of the root, so that
        /runs/a is folder a of the claim.
      resources: further resources of each pod, such as vpc.amazonaws.com/efa: "32".
      exclude: nodes to avoid.
    """

    namespace: str = ""
    queue: str = ""
    node_selector: dict[str, str] = dataclasses.field(default_factory=dict)
    accelerator_resource: str = ""
    rack_label: str = "cloud.provider.com/topology-rack"
    block_label: str = "cloud.provider.com/topology-block"
    volume_claim: str = ""
    volume_path: str = ""
    resources: dict[str, str] = dataclasses.field(default_factory=dict)
    exclude: tuple[str, ...] = ()
