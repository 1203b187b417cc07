"""Questions that both brokers must answer alike: good, bad and absurd input, in order.

The list is a script: later probes see what earlier ones did. Topics and groups of the probes are
new to the broker, and those of the beginning find nothing there yet.
"""

from tests.broker_core.probes.access import OFF
from tests.broker_core.probes.admin import ADMIN
from tests.broker_core.probes.clients import CLIENTS, LOCKS
from tests.broker_core.probes.failures import SEND_BACKS
from tests.broker_core.probes.finding import FINDING
from tests.broker_core.probes.groups import DELETIONS, GROUP_ATTRIBUTES, GROUPS
from tests.broker_core.probes.offsets import OFFSETS
from tests.broker_core.probes.pops import POPS
from tests.broker_core.probes.pulls import PULLS
from tests.broker_core.probes.resets import RESETS
from tests.broker_core.probes.rules import NO_MODE, RULES
from tests.broker_core.probes.sends import SENDS
from tests.broker_core.probes.timers import TIMERS
from tests.broker_core.probes.topics import TOPICS, UNKNOWN

BEGINNING = [*UNKNOWN, *NO_MODE]
GOING_ON = [
    *TOPICS,
    *SENDS,
    *PULLS,
    *CLIENTS,
    *LOCKS,
    *OFFSETS,
    *RESETS,
    *FINDING,
    *SEND_BACKS,
    *TIMERS,
    *POPS,
    *GROUPS,
    *GROUP_ATTRIBUTES,
    *ADMIN,
    *RULES,
    *DELETIONS,
    *OFF,
]
SCRIPT = [*BEGINNING, *GOING_ON]
