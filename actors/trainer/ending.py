"""Checkpoints, drains and the end of the work: what must be safe before it is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Reply,
    Request,
    Unanswered,
    Wake,
    Woken,
)
from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.ranks import Ranks
from milepost.actors.trainer.sure import SureWords
from milepost.actors.trainer.trained import TrainedGroups
from milepost.actors.trainer.works import SaveCheckpoint, Saved
from milepost.messages.buffer import CheckpointSaved
from milepost.messages.evaluator import CheckpointOffered
from milepost.messages.supervisor import Drained
from milepost.messages.trainer import RankOrder

OFFER: Final = "offer"
OFFER_AGAIN_S: Final = 1.0
WORDS_S: Final = 2.0
"""How long a drain waits for its last words to be taken. Whoever is to take them may be the one
whose death ends the run; what they say is in the checkpoint, too, and a resume goes by that."""


@dataclass(slots=True)
class Ending:
    """Which versions are saved, who waits for it, and whether the work is over.

    Attributes:
        saved: version of the newest checkpoint; None before the first.
        saving: version being saved.
        over: why no step will be trained any more; empty while some will.
    """

    plan: TrainerPlan
    ranks: Ranks
    words: SureWords
    saved: int | None = None
    saving: int | None = None
    folder: str = ""
    """Of the newest checkpoint of this life, or the last of the run; empty before the first."""
    over: str = ""
    finished: bool = False
    draining: list[tuple[Request, bool]] = field(default_factory=list)
    drained: bool = False
    offering: bool = False
    """A checkpoint was offered for its evaluation, and is not taken yet."""
    _found: str = ""
    """Folder of the checkpoint that this life goes on from; empty when there is none."""
    _offered: tuple[int, bool] | None = None
    """Version of the checkpoint that was taken last, or is offered; and whether as the last one."""
    _words_until_s: float | None = None

    def go_on_from(self, version: int, folder: str, *, is_last: bool) -> None:
        """A life before this one has saved `version`; 0: none has saved anything."""
        self.saved = version or None
        self._found = folder
        if is_last:
            self._adopt()

    def save(self, version: int, trained: TrainedGroups) -> list[Effect]:
        """Begin a checkpoint; the weights must be those of `version` when the work begins."""
        assert self.saving is None, f"saves {version} while {self.saving} is being saved"
        self.saving = version
        work = SaveCheckpoint(
            f"save/{version}",
            version,
            trained.names,
            trained_before=trained.num_before,
        )
        return self.ranks.order(RankOrder.SAVE, version, work=work)

    def done(self, saved: Saved) -> list[Effect]:
        """A checkpoint is complete on disk."""
        self.saved, self.saving = saved.step, None
        self.folder = saved.folder
        effects: list[Effect] = []
        for name in self.plan.checkpoint_listeners:
            message = CheckpointSaved(step=saved.step, folder=saved.folder)
            effects += self.words.tell(name, message)[0]
        return effects

    # ---- offers --------------------------------------------------------------------------

    def offer(self, *, final: bool) -> list[Effect]:
        """Offer the newest checkpoint to who measures them; once more when it became the last."""
        if not (self.plan.offers_to and self.folder) or self.saved is None or self.offering:
            return []
        known = self._offered
        if known is not None and known[0] == self.saved and known[1] >= final:
            return []
        self._offered, self.offering = (self.saved, final), True
        message = CheckpointOffered(step=self.saved, folder=self.folder, final=final)
        return [Ask(self.plan.offers_to, message, OFFER, deadline_s=self.plan.offer_s)]

    def offer_ended(self, event: Answered | Unanswered | Woken, now_s: float) -> list[Effect]:
        """The checkpoint was taken; or nobody answered, and after a pause it is offered again."""
        match event:
            case Unanswered():
                return [Wake(OFFER, now_s + OFFER_AGAIN_S)]
            case Woken():
                self._offered = None
        self.offering = False
        return []

    def offer_again(self) -> None:
        """Who measures checkpoints has died, and knows of no offer any more."""
        self._offered = None

    def is_saved(self, version: int) -> bool:
        """Whether this life has written the checkpoint of `version`, or found it as the last."""
        return self.saved == version and bool(self.folder)

    def comes_early(self, version: int) -> bool:
        """True once, when the data turns out to have ended; a drain is no end of the work."""
        reason = self.ranks.exhausted
        if not reason or self.over or self.ranks.draining or self.draining:
            return False
        self.over = reason
        if self.saved == version and not self.folder:
            self._adopt()
        return True

    def _adopt(self) -> None:
        # Nothing is left to save: it is offered, and told of, as if this life had written it.
        self.folder = self._found

    @property
    def must_save(self) -> bool:
        """Somebody who drains wants a checkpoint."""
        return any(save for _, save in self.draining)

    def wait(self, now_s: float) -> list[Effect]:
        """Wait for the last words to be taken, but not for ever."""
        if self._words_until_s is not None:
            return []
        self._words_until_s = now_s + WORDS_S
        return [Wake("last-words", self._words_until_s)]

    def has_waited(self, now_s: float) -> bool:
        """Whether that wait is over."""
        return self._words_until_s is not None and now_s >= self._words_until_s

    def reply_drained(self, actor: str) -> list[Effect]:
        """Nothing of ours is in flight any more."""
        replies: list[Effect] = [
            Reply(request, Drained(actor=actor)) for request, _ in self.draining
        ]
        self.draining.clear()
        self.drained = True
        return replies

    @property
    def stands_still(self) -> bool:
        """No step may begin: the run drains, or a checkpoint waits to be taken."""
        return bool(self.draining) or self.drained or self.offering

    def working_on(self, version: int) -> str:
        """What it waits for on the way to the end; empty when nothing."""
        if self.saving is not None:
            return f"saves the checkpoint of version {self.saving}"
        if self.offering:
            return f"waits for {self.plan.offers_to} to take checkpoint {self.saved}"
        return f"done with version {version}" if self.finished or self.drained else ""
