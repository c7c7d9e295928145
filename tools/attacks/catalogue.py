"""All attacks by name."""

from collections.abc import Iterable
from dataclasses import dataclass

from tools.attacks import listed_bodies, listed_clients, listed_ports, own_bodies, own_connections
from tools.attacks.attack import Attack, Needs, Server, Setup

_LISTED: tuple[type[Attack], ...] = (
    listed_bodies.DenseCompressed,
    listed_bodies.DensePlain,
    listed_bodies.RewrittenLarge,
    listed_bodies.Bombs,
    listed_bodies.LongNames,
    listed_bodies.LongFields,
    listed_ports.UnreadLog,
    listed_clients.SilentUploads,
    listed_clients.ByteTrickles,
    listed_clients.TenantFlood,
    listed_clients.LongFairnessIds,
    listed_ports.IdleConnections,
    listed_ports.FewDescriptors,
    listed_clients.JunkNames,
    listed_ports.FailingServer,
    listed_ports.SlowReaders,
    listed_ports.LargePage,
    listed_clients.ForgedTokens,
)
_OURS: tuple[type[Attack], ...] = (
    own_bodies.ManyFields,
    own_bodies.DeepUnions,
    own_bodies.ManyChoices,
    own_bodies.LongNumbers,
    own_bodies.ToolSchemas,
    own_bodies.OddUnicode,
    own_bodies.EscapedPictures,
    own_bodies.GzipMembers,
    own_bodies.OtherApis,
    own_bodies.FreshPrompts,
    own_bodies.HeaderStorm,
    own_bodies.Priorities,
    own_bodies.GiantResponses,
    own_bodies.TinyChunks,
    own_connections.CancelledUploads,
    own_connections.Pipelines,
    own_connections.RapidResets,
    own_connections.EndsTogether,
    own_connections.LongHeads,
    own_connections.SlowHeads,
)

ATTACKS: dict[str, type[Attack]] = {each.name: each for each in (*_LISTED, *_OURS)}


def of(setup: Setup, names: Iterable[str]) -> list[type[Attack]]:
    """Return the named attacks that apply to a set-up."""
    chosen = (ATTACKS[name] for name in names)
    return [attack for attack in chosen if setup in attack.needs.setups]


@dataclass(frozen=True, slots=True)
class Together:
    """Combined requirements of several attacks."""

    open_files: int
    unread_log: bool
    servers: frozenset[Server]

    @classmethod
    def of(cls, needs: Iterable[Needs]) -> "Together":
        """Combine the requirements: the lowest limit, all servers."""
        all_of_them = list(needs)
        limits = [each.open_files for each in all_of_them if each.open_files]
        return cls(
            open_files=min(limits, default=0),
            unread_log=any(each.unread_log for each in all_of_them),
            servers=frozenset(server for each in all_of_them for server in each.servers),
        )
