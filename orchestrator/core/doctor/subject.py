"""What is checked: a project, its bucket, and the machines that would be requested there."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.market.catalog import CATALOG, Gpu

# The identity behind the credentials in use, as far as it is known.


@dataclass(frozen=True, slots=True)
class Identity:
    """The kind of the credentials, and their IAM member, such as `user:ada@example.com`; empty if it is not known."""

    kind: str
    member: str = ""


@dataclass(frozen=True, slots=True)
class NetworkRoute:
    """How requests leave this machine. Each is empty where there is none."""

    proxy: str = ""
    """Without user name and password."""
    variable: str = ""
    """The variable that names the certificate authorities; empty for the list that comes with Python's requests."""
    authorities: str = ""
    certificate: bool = False
    """Whether a client certificate is shown."""


@dataclass(frozen=True, slots=True)
class Subject:
    """`gpus` are the GPUs to check: the one that was asked for and its fallbacks, or the whole catalog."""

    project: str
    bucket: str
    embedded: bool = False
    gpus: tuple[Gpu, ...] = CATALOG
    chosen: bool = False
    """Whether somebody asked for these GPUs. If not, a GPU without quota is only a warning."""
    zones: tuple[str, ...] = ()
    """Empty: every zone of `gpus`."""
    images: tuple[tuple[str, str], ...] = ()
    """(project, family) of each image; empty: those of `gpus`."""
    network: str = "global/networks/default"
    external_ip: bool = True
    allow_install: bool = True
    service_account: str | None = None
    who: str = ""
    """The account in use as an IAM member; empty if it is not known."""

    @property
    def every_zone(self) -> tuple[str, ...]:
        return self.zones or tuple(dict.fromkeys(zone for gpu in self.gpus for zone in gpu.zones))

    @property
    def every_image(self) -> tuple[tuple[str, str], ...]:
        return self.images or tuple(dict.fromkeys((gpu.image_project, gpu.image_family) for gpu in self.gpus))

    @property
    def regions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(zone.rpartition("-")[0] for zone in self.every_zone))

    @property
    def member(self) -> str:
        return self.who or "user:YOUR_ADDRESS"

    @property
    def set_up(self) -> str:
        """The command with which an owner of the project sets up everything."""
        return f"bench init --project {self.project} --bucket {self.bucket} --launcher {self.member}"
