"""Constants of node and GPU scores.

Scores are summed. A plugin gives a node 0 or its constant (placement: 0 to 9), so a stronger reason
outranks all weaker ones together, like the digits of one number. A request dispatcher scales the
weighted total of its scheduling profile to [0, 10), below all other constants.
"""

MAX_HIGH_DENSITY = 9.0
RESOURCE_TYPE = 10.0
AVAILABILITY = 100.0
GPU_SHARING = 1_000.0
TOPOLOGY = 10_000.0
K8S_PLUGINS = 100_000.0
NOMINATED_NODE = 1_000_000.0
