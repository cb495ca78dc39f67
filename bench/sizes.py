"""How much of everything is measured. Quick shows that the benchmark works, not how fast anything is."""

from __future__ import annotations

from msgspec import Struct


class Sizes(Struct, frozen=True):
    seconds: float = 2.0
    """Of each rate of the store."""
    disk_seconds: float = 0.5
    """Of raw writes, before each rate that is compared with them."""
    callers: int = 64
    warm: int = 100
    """Jobs before anything of a worker is measured, so that its children are up."""
    drain: int = 5000
    drain_sync: int = 1000
    pipelines: int = 1000
    pick_ups: int = 300
    pick_up_gap: float = 0.02
    quiet_pick_ups: int = 8
    quiet_gap: float = 1.5
    """Long enough for a worker to look less often."""
    crashed: int = 20
    """Jobs that run when their worker is killed."""
    crashed_seconds: float = 2.0
    lease: float = 3.0
    few: int = 1000
    many: int = 1_000_000
    claims: int = 300
    """Claims of one task each, per queue length and round; with the batches fewer than the short queue has."""
    batches: int = 5
    """Claims of a hundred tasks each, likewise."""
    looks: int = 50
    """Calls of each question."""
    store: str = "sqlite"
    """The store that `store` and `engine` measure."""
    failures: int = 10_000
    pages: int = 1_000_000
    """Jobs in each store while pages are looked at."""
    page_loads: int = 20
    """Of the page of a job, while its server's processor time is taken."""
    page_viewers: int = 500
    watched_seconds: float = 6.0
    """For which people look at a running job."""
    http_file: int = 1024**3
    """Bytes of a file that is sent and fetched."""
    watchers: int = 2000
    peers_only: tuple[str, ...] = ()
    """Contenders that take part beside each other; all, if there are none."""
    peers_jobs: int = 6000
    """Of the fast ones; the slow ones get a share of them."""
    peers_chains: int = 1500
    peers_pick_ups: int = 200
    peers_long: float = 3.0
    """Seconds of a job that is interrupted."""
    peers_watched: float = 45.0
    """Seconds after a kill in which lost jobs have to finish."""
    mission_jobs: int = 5
    """Of each of the 16 users, with the small file."""
    mission_large: int = 50
    """MB of the large file."""
    mission_slow: float = 2.0
    """Seconds of a stage while processes are killed."""
    mission_watched: float = 90.0
    """Seconds after a kill in which lost jobs have to finish."""


FULL = Sizes()

QUICK = Sizes(
    seconds=0.1,
    disk_seconds=0.05,
    callers=16,
    warm=10,
    drain=300,
    drain_sync=50,
    pipelines=50,
    failures=300,
    pages=2000,
    page_loads=3,
    page_viewers=20,
    watched_seconds=1.0,
    pick_ups=30,
    quiet_pick_ups=2,
    crashed=5,
    crashed_seconds=1.0,
    lease=1.0,
    few=1000,
    many=20_000,
    claims=30,
    batches=2,
    looks=10,
    http_file=8 * 1024**2,
    watchers=50,
    peers_jobs=500,
    peers_chains=100,
    peers_pick_ups=30,
    peers_long=1.5,
    peers_watched=10.0,
    mission_jobs=1,
    mission_large=5,
    mission_slow=0.5,
    mission_watched=60.0,
)
