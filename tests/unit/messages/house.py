"""The sender's half of shared memory, without a bus: for tests of who may write what when."""

from __future__ import annotations

from pathlib import Path

from milepost.messages.bus.allotting import Allotments
from milepost.messages.bus.lending import Lender, Loan
from milepost.messages.bus.segments import Segments

MIB = 1 << 20


class House:
    """A lender with its allotments over real files; time stands still unless it is moved."""

    def __init__(self, folder: Path, bytes_max: int = 16 * MIB) -> None:
        self.folder = folder
        self.now = 0.0
        self.num_dropped = 0
        self.segments = Segments("run", lambda: self.now, folder)
        self.allotments = Allotments(self.segments, bytes_max, self._dropped)
        self.lender = Lender(self.segments, self.allotments, lambda: self.now, lease_s=100.0)

    def _dropped(self) -> None:
        self.num_dropped += 1

    def make(self, value: int, nbytes: int = MIB) -> memoryview:
        made = self.allotments.allocate(nbytes)
        made[:] = bytes([value]) * nbytes
        return made

    def lend(self, message_id: int, *buffers: memoryview, to: str = "b") -> Loan:
        loan = self.lender.lend(message_id, buffers, to)
        assert self.lender.fill(loan)
        return loan

    def over(self, message_id: int) -> None:
        self.lender.settle(message_id, taken=True)
        self.lender.give_back(message_id)

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def read(self, loan: Loan, at: int = 0, nbytes: int = MIB) -> bytes:
        place = loan.places[at]
        with (self.folder / place.segment).open("rb") as file:
            file.seek(place.offset)
            return file.read(nbytes)
