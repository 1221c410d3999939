"""What every fabric offers: a member's own number, the others, and bytes to and from them.

A fabric that moves bytes between any two members implements `exchange`, and has the rest. One whose
members are not all connected gathers and broadcasts in its own way.
"""

import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from parley.errors import ParleyError

Buffer = bytes | bytearray | memoryview
Part = tuple[int, Tensor]
"""A member, and bytes for it or room for bytes from it, ``uint8[...]``."""
LENGTH = struct.Struct("<Q")
LIMIT = 1 << 28
"""Bytes that one member may send at once where the others do not know how many it will be."""


class WorkerLost(ParleyError):
    """Another member can no longer be reached; it may have reported the reason elsewhere."""

    def __init__(
        self,
        message: str,
        workers: Sequence[int] = (),
        timed_out: bool = False,
        names: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.workers = tuple(workers)
        """The members that may be lost; empty if unknown."""
        self.names = tuple(names)
        """Their names, where they have names of their own."""
        self.timed_out = timed_out
        """Whether it timed out rather than closing its connection."""


class Silent(WorkerLost):
    """Some member has not said what every member has to."""


class Member(NamedTuple):
    """A member of a generation, as it introduced itself."""

    name: str
    host: str = ""
    agents: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.host}, {listed(self.agents)})" if self.host else self.name


class Pending(Protocol):
    """Bytes under way."""

    def wait(self) -> object:
        """Returns once they have arrived, or been sent; `WorkerLost` if they cannot be."""
        ...


class Fabric(ABC):
    """The members of one generation, and bytes between them; this process is number `me`.

    Messages from one member to another arrive in the order in which they were sent. All members
    gather and broadcast in the same order, too.
    """

    device = torch.device("cpu")
    """Where tensors have to be that are sent."""
    alone_on_host = False
    """Whether this member has its host's cores to itself."""
    local = False
    """Whether all members are on this machine."""
    called = "workers"
    """What the members are called in errors."""

    def __init__(
        self, me: int, members: Sequence[Member], patience: float, host: str | None = None
    ) -> None:
        self.me = me
        self.members = tuple(members)
        self.patience = patience
        """How many seconds one member waits for another."""
        self.host = host or socket.gethostname()
        """Where this member says that it runs."""

    @property
    def own_name(self) -> str:
        """This member as text."""
        return str(self.members[self.me])

    def introduce(self, members: Mapping[int, Member]) -> None:
        """From now on these members are called so."""
        known = enumerate(self.members)
        self.members = tuple(members.get(number, member) for number, member in known)

    def be_patient(self, seconds: float) -> None:
        """From now on one member waits so long for another."""
        self.patience = seconds

    @abstractmethod
    def exchange(self, leaving: Sequence[Part], arriving: Sequence[Part]) -> Sequence[Pending]:
        """Begins to send some bytes, and to receive others in the places given for them."""

    def gather(self, own: Buffer, sizes: Sequence[int] | None = None) -> list[memoryview]:
        """What every member gives, in the order of their numbers, at every member; `sizes`: how
        many bytes each gives, where that is known."""
        if sizes is None:
            lengths = [LENGTH.size] * len(self.members)
            said = self.gather(LENGTH.pack(len(own)), lengths)
            sizes = [LENGTH.unpack(length)[0] for length in said]
            if max(sizes) > LIMIT:
                who = self.members[sizes.index(max(sizes))]
                raise ParleyError(f"workers: {who} wants to send {max(sizes)} bytes at once")
        mine = tensor(own).to(self.device)
        places = [torch.empty(size, dtype=torch.uint8, device=self.device) for size in sizes]
        places[self.me] = mine
        others = [number for number in range(len(sizes)) if number != self.me]
        sent = [(other, mine) for other in others]
        for pending in self.exchange(sent, [(other, places[other]) for other in others]):
            pending.wait()
        return list(map(view, places))

    def broadcast(self, own: Buffer | None, source: int, size: int) -> memoryview:
        """What one member gives, so many bytes, at every member."""
        if source == self.me:
            assert own is not None
            mine = tensor(own).to(self.device)
            others = [number for number in range(len(self.members)) if number != source]
            under_way = self.exchange([(other, mine) for other in others], [])
        else:
            mine = torch.empty(size, dtype=torch.uint8, device=self.device)
            under_way = self.exchange([], [(source, mine)])
        for pending in under_way:
            pending.wait()
        return view(mine)

    def fail(self, error: ParleyError, waits: bool = True) -> ParleyError:
        """Tells the others why this member ends, unless another was first; returns the error of the
        first. `waits`: until they have heard it."""
        return error

    def close(self, failure: BaseException | None = None) -> None:  # noqa: B027
        """Lets go of all connections; `failure` is why, if something has failed."""


def tensor(buffer: Buffer) -> Tensor:
    """The bytes as a tensor, without a copy where they may be written to."""
    found = np.frombuffer(buffer, np.uint8)
    return torch.from_numpy(found if found.flags.writeable else found.copy())


def view(values: Tensor) -> memoryview:
    """A tensor's bytes, without a copy where they are in the memory of the CPU, in order."""
    whole = values.detach().cpu().contiguous().reshape(-1)
    return whole.view(torch.uint8).numpy().data.cast("B")


def listed(numbers: Sequence[int]) -> str:
    """Agents as text.

    >>> listed([3]), listed([0, 1])
    ('agent 3', 'agents 0, 1')
    """
    return f"agent{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"
