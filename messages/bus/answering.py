"""Answers questions and refuses what cannot be read."""

from __future__ import annotations

from functools import partial

from milepost.messages.bus.answers import Aside
from milepost.messages.bus.delivery import Kind
from milepost.messages.bus.host import Host
from milepost.messages.bus.mailbox import Mailbox
from milepost.messages.bus.packing import Packing
from milepost.messages.bus.source import Entry
from milepost.messages.control import NotUnderstood
from milepost.messages.envelope import PROTOCOL
from milepost.messages.layout import Encoded
from milepost.messages.shared import Message


class Answering:
    """The way back for messages of one mailbox, large answers aside."""

    def __init__(self, host: Host, mailbox: Mailbox, packing: Packing, aside: Aside) -> None:
        self._host = host
        self._mailbox = mailbox
        self._packing = packing
        self._aside = aside

    def reply(self, entry: Entry, message: Message) -> None:
        """Answer, if somebody still waits for it.

        Raises:
            TypeError: the message cannot travel.
            ValueError: it is too large.
        """
        if not self._mailbox.can_answer(entry):
            return
        encoded = self._packing.pack(message)
        aside = encoded is None or bool(encoded.buffers)
        local = aside and self._host.transport.is_local(self._host.name)
        aside = aside and self._packing.goes_aside(encoded, local=local)
        message_id = self._host.new_id(None if aside else encoded)
        entry.open = False
        if encoded is None or aside:
            self._aside.start(
                self._reply_aside(entry, message_id, message, encoded),
                f"packing the {type(message).__name__} for {entry.source.name}",
                lambda why: self._send_refusal(entry, f"the answer cannot travel: {why}"),
            )
        else:
            self._mailbox.replies.reply(entry, Kind.REPLY, message_id, encoded)

    async def _reply_aside(
        self, entry: Entry, message_id: int, message: Message, encoded: Encoded | None
    ) -> None:
        local = self._host.transport.is_local(self._host.name)
        try:
            packed = await self._packing.pack_aside(
                message_id, message, encoded, to=entry.source.name, local=local
            )
        except (TypeError, ValueError) as error:
            self._send_refusal(entry, f"the answer cannot travel: {error}")
            return
        settle = partial(self._packing.settle, message_id)
        entry.open = True
        if self._mailbox.can_answer(entry):
            self._mailbox.replies.reply(entry, Kind.REPLY, message_id, packed, settle)
        else:
            settle(taken=False)
        entry.open = False

    def refuse(self, entry: Entry, reason: str) -> None:
        """Take the head of the mailbox and tell its sender why it was not read."""
        self._mailbox.take(entry)
        self._mailbox.num_refused += 1
        entry.frames = ()
        self._send_refusal(entry, reason)

    def _send_refusal(self, entry: Entry, reason: str) -> None:
        entry.open = False
        major, minor = PROTOCOL
        message = NotUnderstood(type=entry.header.type, major=major, minor=minor, reason=reason)
        encoded = self._packing.pack(message)
        assert encoded is not None, "a refusal is small"
        self._mailbox.replies.reply(entry, Kind.REFUSED, self._host.new_id(encoded), encoded)
